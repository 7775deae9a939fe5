"""A figure of a paper: cells as in a table, what is measured of each, and how it is shown.

A file has `points` (what the horizontal axis or the lines stand for), `panels` (such as data sets; none: one) and rows.
The cells' columns are all panels with all points. The form of a measurement says how it is drawn:
numbers   a panel for each measurement and panel of the file, a line (or bars) for each row over the points
curves    a panel for each measurement, row and panel of the file, with a line for each point
matrices, points on a plane      a panel for each measurement, row, panel of the file and point
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from fedframe.errors import SettingError, nearest
from fedframe.experiments.papers.cell_grid import CellGrid, GridRow, Values, file_names, file_text, read_grid
from fedframe.experiments.papers.measured import form_of
from fedframe.settings import merge_part_settings

KEYS = "a figure: title, paper, shows, measures, settings, points and rows"
ONE: dict[str, Values] = {"": {}}


class PaperFigure(CellGrid):
    """A figure of a paper."""

    shows: str  # what the paper's figure shows, in a sentence
    measures: dict[str, str]  # name in the figure -> measurement of ours
    panels: dict[str, Values] = Field(default_factory=lambda: dict(ONE))
    points: dict[str, Values] = Field(default_factory=lambda: dict(ONE))
    x: str = ""  # what the points are: the label of the horizontal axis
    log: bool = False  # a logarithmic horizontal axis
    bars: bool = False  # bars in place of lines
    rows: list[GridRow]

    @model_validator(mode="before")
    @classmethod
    def _columns_are_panels_with_points(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        if "columns" in given:
            raise SettingError("A figure has no 'columns'; name its 'points' and, if there are several, its 'panels'.")
        panels, points = given.get("panels") or ONE, given.get("points") or ONE
        if not all(isinstance(each, dict) for part in (panels, points) for each in (part, *part.values())):
            raise SettingError("'panels' and 'points' must be names with settings, such as points: {5: {clients: 5}}.")
        columns = {
            column_name(str(panel), str(point)): layered(panels[panel], points[point])
            for panel in panels
            for point in points
        }
        named = {"panels": {str(k): v for k, v in panels.items()}, "points": {str(k): v for k, v in points.items()}}
        return {**given, **named, "columns": columns}

    @model_validator(mode="after")
    def _can_be_measured(self) -> PaperFigure:
        if not self.measures:
            raise SettingError("A figure needs something to measure: measures: {Accuracy: generic.final}.")
        for name in self.measures.values():
            form_of(name)
        if self.log and not all(is_number(point) for point in self.points):
            raise SettingError("log = true needs points that are numbers.")
        return self

    def scored(self, row: GridRow) -> set[str]:
        """The kinds of scores that are drawn."""
        return {name.partition(".")[0] for name in self.measures.values()}

    @property
    def numeric(self) -> bool:
        """Whether points lie where their numbers are, and not side by side."""
        return not self.bars and all(is_number(point) for point in self.points)


def column_name(panel: str, point: str) -> str:
    """The cells' column of a point in a panel."""
    return " ".join(name for name in (panel, point) if name) or "all"


def layered(below: Values, above: Values) -> Values:
    """Settings of a panel and of a point as one; both may set parts."""
    parts = merge_part_settings(below.get("set") or {}, above.get("set") or {})
    return {**below, **above, **({"set": parts} if parts else {})}


def is_number(text: str) -> bool:
    """Whether a point's name is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def figure_names() -> list[str]:
    """The figures that come along, by paper and name."""
    return sorted(name for name in file_names() if not name.rpartition("-")[2].isdecimal())


def load_figure(name: str) -> PaperFigure:
    """A figure that comes along, by name, or a file of your own."""
    if not name.endswith((".yaml", ".yml")) and name not in figure_names():
        raise SettingError(f"There is no figure {name!r}; {nearest(name, figure_names())}")
    return read_figure(*file_text(name))


def read_figure(name: str, text: str, where: str) -> PaperFigure:
    """A figure from the text of its file; an error is one sentence."""
    return read_grid(PaperFigure, name, text, where, KEYS)
