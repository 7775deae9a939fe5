"""docs/papers.md says what there is."""

from __future__ import annotations

import re
import shlex

import pytest
import typer.core
import typer.main

from fedframe.analysis.measurements import LOCAL, MODEL
from fedframe.cli import app
from fedframe.experiments.papers.cells import Choice, placed_cells
from fedframe.experiments.papers.figure import figure_names, read_figure
from fedframe.experiments.papers.library import load
from fedframe.experiments.papers.scale import Scale
from fedframe.experiments.papers.table import read_table, table_names
from tests.test_docs import ROOT

PAGE = (ROOT / "docs" / "papers.md").read_text()


def test_every_table_is_on_the_page() -> None:
    rows = re.findall(r"^\| .*? \(`(\w+)`\) \| ([\d ,to]+) \|", PAGE, re.MULTILINE)
    listed = {f"{paper}-{number}" for paper, numbers in rows for number in numbers_in(numbers)}
    assert listed == {*table_names()}


def numbers_in(text: str) -> list[int]:
    """1, 2 and 3, 8 and 9 from "1 to 3, 8, 9"."""
    found: list[int] = []
    for piece in text.split(","):
        first, _, last = piece.partition(" to ")
        found += range(int(first), int(last or first) + 1)
    return found


@pytest.mark.slow
def test_commands_are_understood() -> None:
    program = typer.main.get_command(app)
    assert isinstance(program, typer.core.TyperGroup)
    lines = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    assert lines
    for line in lines:
        name, command, *words = shlex.split(line, comments=True)
        assert (name, command) == ("fedframe", "paper")
        given = program.commands[command].make_context(command, words).params
        if given["table"] is not None:
            rows, columns = (given[key].split(",") if given[key] else () for key in ("rows", "columns"))
            assert placed_cells(load(given["table"]), Choice(rows=rows, columns=columns))


def test_every_figure_is_on_the_page() -> None:
    assert {*re.findall(r"^\| `([a-z]\w*-\w+)` \|", PAGE, re.MULTILINE)} == {*figure_names()}


def test_table_and_figure_of_the_page_can_be_read() -> None:
    table, figure = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(placed_cells(read_table("my-table", table, "my-table.yaml"), Choice())) == 4
    assert len(placed_cells(read_figure("my-figure", figure, "my-figure.yaml"), Choice())) == 4


def test_every_measurement_is_on_the_page() -> None:
    for kind, names in (("model", MODEL), ("local", LOCAL)):
        for name in names:
            assert f"`{kind}.{name}`" in PAGE or f"`{name}`" in PAGE


def test_scaled_rounds_of_the_page_are_those_of_the_code() -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith("| rounds (at least 3)"))
    assert re.findall(r"\d+", row)[1:] == [str(Scale(s).apply({"rounds": 100})["rounds"]) for s in (1, 0.05, 0.01)]
