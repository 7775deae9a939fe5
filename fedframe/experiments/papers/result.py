"""What came out, number by number, beside what the paper prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedframe.experiments.grid.cell import Outcome
from fedframe.experiments.grid.scores import Figure
from fedframe.experiments.papers.cell_grid import CellGrid
from fedframe.experiments.papers.cells import Choice, PlacedCell
from fedframe.experiments.papers.measured import CellReader, meaning_of, unit_of
from fedframe.experiments.papers.table import PaperTable
from fedframe.experiments.papers.tuning import Chosen, notes_on


@dataclass(frozen=True)
class Entry:
    """One number of the table."""

    row: str
    column: str
    score: str  # the paper's name of it
    ours: Figure
    printed: float | None
    remark: str  # why there is no number of ours, in a word

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        mean = self.ours.mean
        return mean - self.printed if mean is not None and self.printed is not None else None


@dataclass(frozen=True)
class FilledTable:
    """A table with our numbers."""

    table: PaperTable
    choice: Choice
    placed_cells: Sequence[PlacedCell]
    outcomes: Mapping[Path, Outcome]
    missing: Sequence[str] = ()  # sentences on columns whose data are not here
    tuned: Sequence[Chosen] = ()  # learning rates that were chosen

    def outcomes_at(self, row: str, column: str) -> list[Outcome]:
        """What has become of the runs behind a place of the table."""
        here = [place for place in self.placed_cells if (place.row.name, place.column) == (row, column)]
        return [self.outcomes[place.cell.folder] for place in here if place.cell.folder in self.outcomes]

    @cached_property
    def readers(self) -> dict[Path, CellReader]:
        """What measures each cell."""
        return {folder: CellReader(outcome, self.table.groups) for folder, outcome in self.outcomes.items()}

    @property
    def rows(self) -> list[str]:
        """The chosen rows."""
        return [*dict.fromkeys(place.row.name for place in self.placed_cells)]

    @property
    def columns(self) -> list[str]:
        """The chosen columns."""
        return [*dict.fromkeys(place.column for place in self.placed_cells)]

    def entry(self, row: str, column: str, score: str) -> Entry:
        """One number: ours, the paper's."""
        found = next(each for each in self.table.rows if each.name == row)
        outcomes = self.outcomes_at(row, column)
        name = self.table.score_of(found, score)
        values = [self.readers[outcome.cell.folder].number(name) for outcome in outcomes if outcome.state == "finished"]
        figure = Figure(tuple(value for value in values if value is not None))
        states = {outcome.state for outcome in outcomes}
        remark = next((state for state in ("diverged", "failed") if state in states), "")
        if not figure.values and not remark:
            unreached = "not reached" if self.counts(score) else "not measured"
            remark = unreached if "finished" in states else "not run"
        return Entry(row, column, score, figure, self.table.printed(found, column, score), remark)

    @property
    def entries(self) -> list[Entry]:
        """All numbers of the chosen part of the table."""
        return [
            self.entry(row, column, score)
            for row in self.rows
            for column in self.columns
            for score in self.table.scores
        ]

    @property
    def size(self) -> str:
        """What was scaled, and over how many seeds the numbers are."""
        return f"{size_of(self.table, self.choice)} Ours: {seeds_of(self.choice)}."

    @property
    def meanings(self) -> dict[str, str]:
        """What each score of the table is in our words."""
        return {name: meaning_of(score) for name, score in self.table.scores.items()}

    @property
    def notes(self) -> list[str]:
        """What stands under the table."""
        return [*self.table.notes, *notes_on(self.tuned), *self.missing, *failures_of(self.outcomes)]

    def counts(self, score: str) -> bool:
        """Whether a score is a count and not an accuracy."""
        return unit_of(self.table.scores[score]) in ("count", "bytes")

    def plain(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return {
            "table": self.table.name,
            "title": self.table.title,
            "paper": self.table.paper,
            "scale": self.choice.scale.share,
            "size": self.size,
            "scores": {
                name: {"score": self.table.scores[name], "meaning": self.meanings[name]} for name in self.meanings
            },
            "numbers": [
                {
                    "row": entry.row,
                    "column": entry.column,
                    "score": entry.score,
                    "ours": entry.ours.mean,
                    "deviation": entry.ours.spread,
                    "values": list(entry.ours.values),
                    "paper": entry.printed,
                    "difference": entry.difference,
                    "remark": entry.remark,
                }
                for entry in self.entries
            ],
            "tuning": [each.plain() for each in self.tuned],
            "cells": plain_cells(self.placed_cells, self.outcomes, self.choice.out),
            "notes": self.notes,
        }


def size_of(grid: CellGrid, choice: Choice) -> str:
    """A sentence on what was scaled."""
    return choice.scale.sentence(int(grid.settings.get("rounds", 30)))


def seeds_of(choice: Choice) -> str:
    """Over how many seeds numbers are."""
    return "one seed" if choice.seeds == 1 else f"mean and standard deviation over {choice.seeds} seeds"


def failures_of(outcomes: Mapping[Path, Outcome]) -> list[str]:
    """Cells that gave no number, each with its reason."""
    troubled = {o.cell.name: o for o in outcomes.values() if o.state in ("diverged", "failed")}
    return [f"{name}: {found.state}. {found.reason}{with_others(found)}" for name, found in troubled.items()]


def plain_cells(places: Sequence[PlacedCell], outcomes: Mapping[Path, Outcome], out: Path) -> list[dict[str, Any]]:
    """Cells and what has become of them as plain values."""
    found = [(place, outcomes.get(place.cell.folder)) for place in places]
    return [
        {
            "row": place.row.name,
            "column": place.column,
            "seed": place.seed,
            "method": place.cell.settings.method,
            "lr": place.cell.settings.lr,
            "folder": str(place.cell.folder.relative_to(out)),
            "state": outcome.state if outcome else "waiting",
            "reason": outcome.reason if outcome else "",
        }
        for place, outcome in found
    ]


def with_others(outcome: Outcome) -> str:
    """How to follow the advice of a run that diverged: the table itself has the paper's settings."""
    if outcome.state != "diverged":
        return ""
    config = outcome.cell.folder / "config.yaml"
    return f" Its settings are the paper's; to try others: fedframe run --config {config} --out runs/other --lr ..."
