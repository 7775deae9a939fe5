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
            numbers = (
                [value for cells in panel["cells"] for value in cells]
                if panel["kind"] == "matrix"
                else panel["x"] + panel["y"]
            )
        assert numbers
        assert all(math.isfinite(value) for value in numbers if value is not None)
        assert any(value is not None for value in numbers)


# -- reading a figure --------------------------------------------------------------------------------------------------
GOOD: dict[str, Any] = {
    "title": "t",
    "paper": "p",
    "shows": "what it shows.",
    "measures": {"G": "generic.final"},
    "settings": {"data": "digits", "rounds": 100},
    "panels": {"A": {"partition": "iid", "set": {"fine_tune": {"epochs": 2}}}, "B": {"partition": "dirichlet:1"}},
    "points": {0.1: {"lr": 0.1}, 0.5: {"lr": 0.5, "set": {"fine_tune": {"lr": 0.01}}}},
    "rows": [{"name": "x", "method": "fedavg"}],
}


def figure_of(**changes: Any) -> PaperFigure:
    """The good figure with something changed."""
    return read_figure("toy", yaml.safe_dump({**GOOD, **changes}), "toy.yaml")


def test_cells_are_all_panels_with_all_points() -> None:
    placed = {place.column: place.cell.settings for place in placed_cells(figure_of(), Choice())}
    assert [*placed] == ["A 0.1", "A 0.5", "B 0.1", "B 0.5"]
    assert placed["A 0.5"].partition == "iid"
    assert placed["A 0.5"].lr == 0.5
    assert placed["A 0.5"].set == {"fine_tune": {"epochs": 2, "lr": 0.01}}
    assert placed["B 0.1"].set == {}


def test_points_that_are_numbers_lie_where_they_are() -> None:
    assert figure_of().numeric
    assert not figure_of(points={"iid": {}, 1: {}}).numeric
    assert not figure_of(bars=True).numeric


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"measures": {"G": "generic.best"}}, "There is no score 'generic.best'"),
        (
            {"measures": {"G": "model.prunning"}},
            "There is no measurement 'model.prunning'; did you mean 'model.pruning'",
        ),
        ({"measures": {"G": "last.cosine"}}, "There is no measurement 'last.cosine'"),
        ({"measures": {}}, "A figure needs something to measure"),
        ({"columns": {"a": {}}}, "A figure has no 'columns'"),
        ({"points": {"a": 3}}, "must be names with settings"),
        ({"points": {"a": {"clientss": 3}}}, "There is no setting 'clientss'"),
        ({"points": {"iid": {}, "1": {}}, "log": True}, "needs points that are numbers"),
        ({"points": {"a,b": {}}}, "has a comma"),
        ({"extra": 1}, "extra: Extra inputs are not permitted"),
    ],
)
def test_mistake_in_a_figure_is_named_in_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError) as caught:
        figure_of(**changes)
    assert str(caught.value).startswith("toy.yaml: ")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tables_and_figures_are_found_by_name_and_files_by_what_they_hold(tmp_path: Path) -> None:
    assert {*all_names()} == {*table_names(), *figure_names()}
    assert isinstance(load("fedrane-fig5"), PaperFigure)
    assert load("fedrane-1") == load_table("fedrane-1")
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(GOOD))
    assert isinstance(load(str(tmp_path / "mine.yaml")), PaperFigure)
    with pytest.raises(SettingError, match="There is no table or figure 'fedrane-fig55'; did you mean 'fedrane-fig5'"):
        load("fedrane-fig55")


@pytest.mark.parametrize("name", figure_names())
def test_settings_are_the_papers_and_not_left_to_chance(name: str) -> None:
    figure = load_figure(name)
    for values in figure.columns.values():
        for row in figure.rows:
            known = {**figure.settings, **values, **row.settings}
            assert {"data", "partition", "clients", "rounds", "epochs", "batch", "local_test", "model"} <= {*known}
    assert figure.shows.endswith(".")


@pytest.mark.slow
def test_figures_share_runs_with_each_other_and_with_tables() -> None:
    def folders(name: str) -> set[Path]:
        return {place.cell.folder for place in placed_cells(load(name), Choice())}

    assert folders("fedetf-fig1") == folders("fedetf-norms")
    assert folders("fedloge-fig1") == folders("fedloge-fig3") == folders("fedloge-fig6")
    assert folders("fedloge-fig1") < folders("fedloge-3")
