"""All that comes along: tables and figures of papers, by name."""

from __future__ import annotations

import yaml

from fedframe.errors import SettingError, nearest
from fedframe.experiments.papers.cell_grid import file_text
from fedframe.experiments.papers.figure import PaperFigure, figure_names, read_figure
from fedframe.experiments.papers.table import PaperTable, read_table, table_names


def all_names() -> list[str]:
    """Tables and figures, paper by paper."""
    return sorted([*table_names(), *figure_names()], key=lambda name: name.rpartition("-")[0])


def load(name: str) -> PaperTable | PaperFigure:
    """A table or a figure that comes along, by name, or a file of your own; one that names `measures` is a figure."""
    if not name.endswith((".yaml", ".yml")) and name not in all_names():
        raise SettingError(f"There is no table or figure {name!r}; {nearest(name, all_names())}")
    stem, text, where = file_text(name)
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError:
        content = None  # what is wrong with it is said below
    is_figure = isinstance(content, dict) and "measures" in content
    return read_figure(stem, text, where) if is_figure else read_table(stem, text, where)
