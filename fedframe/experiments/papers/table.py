"""A table of a paper: its rows and columns as settings of ours, and the numbers that are printed there."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from fedframe.errors import SettingError, nearest
from fedframe.experiments.papers.cell_grid import CellGrid, GridRow, file_names, file_text, read_grid
from fedframe.experiments.papers.measured import check_number, unit_of

KEYS = "a table: title, paper, scores, settings, columns and rows"


class TableRow(GridRow):
    """A line of the table: a method, how it is set, and its printed numbers."""

    scores: dict[str, str] = Field(default_factory=dict)  # where this row's number is another score of ours
    paper: list[float | None]  # from left to right as printed; null: absent or unreadable


class PaperTable(CellGrid):
    """A table of a paper."""

    unit: Literal["percent", "share", "count", "megabytes", "plain"]  # of the printed numbers
    scores: dict[str, str]  # name in the paper -> score of ours
    rows: list[TableRow]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for score in [*self.scores.values(), *(score for row in self.rows for score in row.scores.values())]:
            check_number(score)
            allowed = {"accuracy": ("percent", "share"), "bytes": ("megabytes",), "count": ("count",)}
            if self.unit not in allowed.get(unit_of(score), ("plain",)):
                raise SettingError(f"The score {score!r} is not counted in {self.unit}.")
        wanted = len(self.columns) * len(self.scores)
        for row in self.rows:
            if len(row.paper) != wanted:
                raise SettingError(f"Row {row.name!r} has {len(row.paper)} numbers; the table has {wanted} in a line.")
            for name in row.scores:
                if name not in self.scores:
                    raise SettingError(f"There is no score {name!r}; {nearest(name, self.scores)}")
        return self

    def printed(self, row: TableRow, column: str, score: str) -> float | None:
        """The paper's number, accuracies as shares of 1, and megabytes as bytes."""
        place = [*self.columns].index(column) * len(self.scores) + [*self.scores].index(score)
        number = row.paper[place]
        divisor = {"percent": 100, "megabytes": 1e-6}.get(self.unit)
        return number / divisor if number is not None and divisor is not None else number

    @property
    def shown_factor(self) -> float:
        """What our scores are multiplied by to be shown: accuracies in percent, bytes in megabytes."""
        return {"count": 1.0, "plain": 1.0, "megabytes": 1e-6}.get(self.unit, 100.0)

    def score_of(self, row: TableRow, score: str) -> str:
        """Our score behind a number of the paper."""
        return row.scores.get(score, self.scores[score])

    def scored(self, row: GridRow) -> set[str]:
        """The kinds of scores in a row."""
        assert isinstance(row, TableRow)
        return {self.score_of(row, score).partition(".")[0] for score in self.scores}


def table_names() -> list[str]:
    """The tables that come along, in the order of papers and numbers."""
    found = [name for name in file_names() if name.rpartition("-")[2].isdecimal()]
    return sorted(found, key=lambda name: (name.rpartition("-")[0], int(name.rpartition("-")[2])))


def load_table(name: str) -> PaperTable:
    """A table that comes along, by name, or a file of your own."""
    if not name.endswith((".yaml", ".yml")) and name not in table_names():
        raise SettingError(f"There is no table {name!r}; {nearest(name, table_names())}")
    return read_table(*file_text(name))


def read_table(name: str, text: str, where: str) -> PaperTable:
    """A table from the text of its file; an error is one sentence."""
    return read_grid(PaperTable, name, text, where, KEYS)
