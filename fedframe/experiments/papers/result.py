"""What came out, number by number, beside what the paper prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedframe.experiments.grid.cell import Outcome
from fedframe.experiments.grid.scores import Figure, explain, is_accuracy
from fedframe.experiments.papers.cells import Choice, PlacedCell
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
        figure = Figure.of(outcomes, self.table.score_of(found, score), self.table.groups)
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
    def failures(self) -> list[str]:
        """Cells that gave no number, each with its reason."""
        troubled = {o.cell.name: o for o in self.outcomes.values() if o.state in ("diverged", "failed")}
        return [f"{name}: {found.state}. {found.reason}{with_others(found)}" for name, found in troubled.items()]

    @property
    def size(self) -> str:
        """What was scaled, and over how many seeds the numbers are."""
        rounds = int(self.table.settings.get("rounds", 30))
        seeds = "one seed" if self.choice.seeds == 1 else f"mean and standard deviation over {self.choice.seeds} seeds"
        return f"{self.choice.scale.sentence(rounds)} Ours: {seeds}."

    @property
    def meanings(self) -> dict[str, str]:
        """What each score of the table is in our words."""
        return {name: explain(score) for name, score in self.table.scores.items()}

    @property
    def notes(self) -> list[str]:
        """What stands under the table."""
        return [*self.table.notes, *notes_on(self.tuned), *self.missing, *self.failures]

    def counts(self, score: str) -> bool:
        """Whether a score is a count and not an accuracy."""
        return not is_accuracy(self.table.scores[score])

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
            "cells": [self.plain_cell(place) for place in self.placed_cells],
            "notes": self.notes,
        }

    def plain_cell(self, place: PlacedCell) -> dict[str, Any]:
        """A cell as plain values."""
        outcome = self.outcomes.get(place.cell.folder)
        return {
            "row": place.row.name,
            "column": place.column,
            "seed": place.seed,
            "method": place.cell.settings.method,
            "lr": place.cell.settings.lr,
            "folder": str(place.cell.folder.relative_to(self.choice.out)),
            "state": outcome.state if outcome else "waiting",
            "reason": outcome.reason if outcome else "",
        }


def with_others(outcome: Outcome) -> str:
    """How to follow the advice of a run that diverged: the table itself has the paper's settings."""
    if outcome.state != "diverged":
        return ""
    config = outcome.cell.folder / "config.yaml"
    return f" Its settings are the paper's; to try others: fedframe run --config {config} --out runs/other --lr ..."
