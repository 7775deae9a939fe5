"""The row of a paper's own method learns with the rates that its table gives it: on digits, with a small net."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fedframe
from fedframe.experiments.papers.cells import Choice, asked_settings
from fedframe.experiments.papers.table import PaperTable, TableRow, load_table, table_names

CHANCE = 0.1


def own_rows(table: PaperTable) -> list[TableRow]:
    """The rows of the method that the paper is about; where its recipe has none, the last row."""
    recipe = table.name.rpartition("-")[0]
    own = [row for row in table.rows if recipe in row.method.split("+")]
    return own[-1:] or table.rows[-1:]


def few_classes(table: PaperTable) -> str:
    """A column whose data have ten classes, as digits have, if there is one."""
    data = {column: str({**table.settings, **values}["data"]) for column, values in table.columns.items()}
    return next((column for column, name in data.items() if name in ("cifar10", "fashion-mnist")), next(iter(data)))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in table_names() if load_table(name).unit != "plain"])
def test_row_of_the_papers_own_method_beats_chance(name: str, tmp_path: Path) -> None:
    table = load_table(name)
    (row,) = own_rows(table)
    settings = asked_settings(table, row, few_classes(table), 0, Choice())
    partition = re.sub(r"longtail:\d+", "longtail:10", re.sub(r"classes:\d+", "classes:5", settings["partition"]))
    partition = partition.replace("user", "dirichlet:0.5")  # digits name no writers
    small = {"data": "digits", "model": "mlp:64", "clients": 10, "rounds": 8, "participation": 1.0, "augment": "none"}
    small |= {"local_test": 0.2, "partition": partition, "eval_every": 4, "workers": 1, "personal": False}
    found = fedframe.run(**{**settings, **small}, out=tmp_path / "run", progress=False)
    assert found.summary["scores"]["generic"]["final"] > 3 * CHANCE
