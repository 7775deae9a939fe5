"""Candidates compared on validation data, the same number for every method where they have the same settings."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedframe.core.measures import sign_of
from fedframe.errors import RunError, SettingError
from fedframe.experiments.compare.plan import Plan, Tuning
from fedframe.experiments.compare.rows import Candidate, MethodRow
from fedframe.experiments.grid.cell import Cell, Outcome
from fedframe.experiments.grid.scores import check_score, explain, is_accuracy, read_score
from fedframe.methods.recipes import outline_method

GENERIC = "generic"  # of a method with a server stage the final score, else the mean of the last five evaluations
PERSONAL = "personal.final"


@dataclass(frozen=True)
class Trial:
    """A candidate and its validation scores."""

    row: MethodRow
    candidate: Candidate
    values: tuple[float | None, ...]  # per tuning seed
    states: tuple[str, ...]
    metric: str = "accuracy"  # what the values are

    @property
    def worth(self) -> float | None:
        """The mean, or of an error its negative: more is better."""
        return None if self.mean is None else sign_of(self.metric) * self.mean

    @property
    def mean(self) -> float | None:
        """The mean over seeds; None if a seed is missing: a setting that diverges in one is not chosen."""
        known = [value for value in self.values if value is not None]
        return statistics.fmean(known) if len(known) == len(self.values) else None


@dataclass(frozen=True)
class Tuned:
    """All trials, and what was chosen by them."""

    tuning: Tuning
    trials: Sequence[Trial]
    outcomes: Sequence[Outcome] = ()

    def of(self, row: MethodRow) -> list[Trial]:
        """The trials of a method."""
        return [trial for trial in self.trials if trial.row == row]

    def chosen(self, row: MethodRow) -> Candidate | None:
        """The best candidate, of equals the first; None if there is none without a diverged run.

        With a run that failed there is none either: a choice among the others would not be fair.
        """
        if self.failed(row):
            return None
        known = [(trial.worth, -number) for number, trial in enumerate(self.of(row)) if trial.worth is not None]
        return self.of(row)[-max(known)[1]].candidate if known else None

    def failed(self, row: MethodRow) -> bool:
        """Whether a run of a method's candidates failed, and may be made by another try."""
        return any("failed" in trial.states for trial in self.of(row))

    def plain(self) -> dict[str, Any]:
        """The validation grid as plain values, for JSON."""
        trials = [
            {
                "label": trial.row.label,
                "candidate": {str(address): value for address, value in trial.candidate.values},
                "values": list(trial.values),
                "mean": trial.mean,
                "states": list(trial.states),
                "chosen": trial.candidate == self.chosen(trial.row),
            }
            for trial in self.trials
        ]
        about = self.tuning
        return {"select": about.select, "validate_share": about.share, "seeds": list(about.seeds), "trials": trials}


def choose_select(rows: Sequence[MethodRow], asked: str) -> str:
    """The score that candidates are chosen by; if none is asked for, one that every method has."""
    if asked == GENERIC:
        return asked
    if asked:
        check_score(asked)
        if not is_accuracy(asked):
            raise SettingError(f"select = {asked!r} is no accuracy; use select = personal.final.")
        return asked
    return GENERIC if all(outline_method(row.method).shares_a_model for row in rows) else PERSONAL


def score_of(select: str, method: str) -> str:
    """The score itself: a method with a server stage is meant to be used after it."""
    if select != GENERIC:
        return select
    stage = outline_method(method).optional_slot("server_stage")
    return "generic.last_five" if stage is None else "generic.final"


def explain_select(select: str) -> str:
    """The choice in words."""
    if select != GENERIC:
        return explain(select)
    return "generic, mean of the last five evaluations (final for a method with a server stage)"


def tuning_cell(plan: Plan, tuning: Tuning, row: MethodRow, candidate: Candidate, seed: int) -> Cell:
    """A run on the training data without the validation share, scored on that share."""
    needed: dict[str, Any] = {
        "validate_share": tuning.share,
        "personal": tuning.select in (PERSONAL, "personal.weighted"),
    }
    cell = plan.named_cell("tuning", row, candidate, seed, plan.settings_of(row, candidate, seed, **needed, measure=""))
    return replace(cell, name=f"tuning {cell.name}")


def tuning_cells(plan: Plan, tuning: Tuning) -> dict[tuple[str, Candidate, int], Cell]:
    """A cell per method, candidate and seed; a method with one candidate has nothing to choose."""
    return {
        (row.label, candidate, seed): tuning_cell(plan, tuning, row, candidate, seed)
        for seed in tuning.seeds
        for row in plan.rows
        if len(row.candidates) > 1
        for candidate in row.candidates
    }


def score_trials(
    rows: Sequence[MethodRow],
    cells: Mapping[tuple[str, Candidate, int], Cell],
    tuning: Tuning,
    outcomes: Mapping[Path, Outcome],
) -> Tuned:
    """The trials with their scores."""
    trials = [
        make_trial(
            row,
            candidate,
            [outcomes[cells[row.label, candidate, seed].folder] for seed in tuning.seeds],
            tuning.select,
        )
        for row in rows
        if len(row.candidates) > 1
        for candidate in row.candidates
    ]
    return Tuned(tuning, trials, [outcomes[folder] for folder in dict.fromkeys(c.folder for c in cells.values())])


def refuse_failed(outcomes: Sequence[Outcome]) -> None:
    """Refuse to choose among candidates some of which could not be run."""
    failed = [outcome for outcome in outcomes if outcome.state == "failed"]
    if failed:
        raise RunError(
            f"{len(failed)} of {len(outcomes)} tuning runs could not be made; the same command tries them again. "
            f"{failed[0].cell.name}: {failed[0].reason}"
        )


def make_trial(row: MethodRow, candidate: Candidate, found: Sequence[Outcome], select: str) -> Trial:
    """A candidate with the scores of its runs, one per tuning seed."""
    score = score_of(select, row.method)
    values = tuple(read_score(outcome, score) for outcome in found)
    if any(o.state == "finished" and value is None for o, value in zip(found, values, strict=True)):
        raise RunError(f"{row.label} has no score {score!r} to choose by; use --select personal.final.")
    metric = next(
        (str(each.summary.get("metric", "accuracy")) for each in found if each.state == "finished"), "accuracy"
    )
    return Trial(row, candidate, values, tuple(outcome.state for outcome in found), metric)
