"""The papers' figures: every file can be read, and is drawn once from tiny runs on digits."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedframe.errors import SettingError
from fedframe.experiments.papers.cells import Choice, placed_cells
from fedframe.experiments.papers.drawn import DrawnFigure
from fedframe.experiments.papers.figure import PaperFigure, figure_names, load_figure, read_figure
from fedframe.experiments.papers.library import all_names, load
from fedframe.experiments.papers.measured import form_of, meaning_of
from fedframe.experiments.papers.run import draw_figure
from fedframe.experiments.papers.table import load_table, table_names

SMALL = {"data": "digits", "model": "mlp:32", "augment": "none"}
FEWEST = {"clients": 3, "rounds": 2, "epochs": 1, "batch": 32}


def tiny(values: dict[str, Any]) -> dict[str, Any]:
    """Settings that take a second: digits, a small net, and at most a few of everything."""
    found = {key: min(value, FEWEST[key]) if key in FEWEST else value for key, value in values.items()}
    found |= {key: SMALL[key] for key in SMALL if key in values}
    if "partition" in values:
        found["partition"] = re.sub(r"longtail:\d+", "longtail:5", values["partition"])
    if "set" in values:
        found["set"] = {part: {k: tiny_part(k, v) for k, v in each.items()} for part, each in values["set"].items()}
    return found


def tiny_part(key: str, value: Any) -> Any:
    """Short stages; and digits' net has no ETF with more zeros."""
    if key in ("epochs", "feature_epochs", "iterations"):
        return min(value, 2)
    return min(value, 0.6) if key == "sparsity" else value


def tiny_figure(name: str) -> PaperFigure:
    """A figure as its file has it, with the first and the last of its points, in tiny settings."""
    figure = load_figure(name)
    content = figure.model_dump(exclude={"columns", "name"})
    ends = {0, len(figure.points) - 1}
    content["points"] = {p: tiny(v) for i, (p, v) in enumerate(figure.points.items()) if i in ends}
    content["panels"] = {p: tiny(v) for p, v in figure.panels.items()}
    content["settings"] = {**tiny(figure.settings), "workers": 1}
    kept = {f"{panel} {point}".strip() for panel in figure.panels for point in content["points"]}
    for row in content["rows"]:
        row["settings"] = tiny(row["settings"])
        row["columns"] = {column: values for column, values in row["columns"].items() if column in kept}
    return read_figure(name, yaml.safe_dump(content, sort_keys=False), name)


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder, because figures share runs."""
    return tmp_path_factory.mktemp("figures")


@pytest.mark.slow
@pytest.mark.parametrize("name", figure_names())
def test_figure_is_drawn_from_tiny_runs(name: str, together: Path) -> None:
    figure = tiny_figure(name)
    result = draw_figure(figure, Choice(out=together), cores=1, progress=False)
    assert {outcome.state for outcome in result.outcomes.values()} == {"finished"}
    assert (together / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (together / f"{name}.svg").read_text()
    content = json.loads((together / f"{name}.json").read_text())
    check_panels(result, content["panels"])
    text = (together / f"{name}.md").read_text()
    for measure in figure.measures.values():
        assert meaning_of(measure) in text
    assert figure.shows in text


def check_panels(result: DrawnFigure, panels: list[dict[str, Any]]) -> None:
    """There is a panel for everything that the file names, and finite numbers in each."""
    rows, places = len(result.rows), sum(map(len, result.places.values()))
    wanted = 0
    for measure in result.figure.measures.values():
        single = rows * places
        wanted += {"number": len(result.places), "curves": rows * len(result.places)}.get(form_of(measure), single)
    assert len(panels) == wanted
    for panel in panels:
        if panel["kind"] in ("sweep", "curves"):
            assert panel["lines"]
            numbers = [value for line in panel["lines"] for value in line["y"]]
        else:
            numbers = sum(panel["cells"], []) if panel["kind"] == "matrix" else panel["x"] + panel["y"]
        assert numbers
        assert all(math.isfinite(value) for value in numbers if value is not None)
        assert any(value is not None for value in numbers)
