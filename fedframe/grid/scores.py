"""Scores of cells by name, and their mean over seeds.

generic.final, personal.last_five, ...   as in summary.json
many, medium, few                        accuracy of the saved shared model on frequent, middling and rare classes
rounds_to:0.33                           rounds until the generic accuracy first reached 0.33
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fedframe.errors import SettingError, nearest
from fedframe.grid.cell import Outcome
from fedframe.measure.groups import CUTS, GROUPS, accuracy_by_group

PLAIN = {f"{score}.{kind}" for score in ("generic", "client", "personal") for kind in ("final", "last", "last_five")}
PLAIN |= {"client.weighted", "personal.weighted"}
ROUNDS_TO = "rounds_to"
MEANINGS = {
    "generic": "the shared model on the global test set",
    "client": "the shared model on each client's own test data, mean over clients",
    "personal": "each client's own model on its own test data, mean over clients",
    "many": "the shared model on the test samples of frequent classes",
    "medium": "the shared model on the test samples of middling classes",
    "few": "the shared model on the test samples of rare classes",
}
KINDS = {
    "final": "the saved models, after all stages",
    "last": "after the last round",
    "last_five": "mean of the last five evaluations",
    "weighted": "the saved models; clients count by their test samples",
}


def check_score(name: str) -> str:
    """The name of a score, if there is such a score."""
    kind, colon, goal = name.partition(":")
    known = [*sorted(PLAIN), *GROUPS, f"{ROUNDS_TO}:0.5"]
    if name in PLAIN or name in GROUPS or (kind == ROUNDS_TO and colon and is_share(goal)):
        return name
    raise SettingError(f"There is no score {name!r}; {nearest(name, known)}")


def is_share(text: str) -> bool:
    """Whether a text is a number between 0 and 1."""
    try:
        return 0 < float(text) < 1
    except ValueError:
        return False


def is_accuracy(name: str) -> bool:
    """Whether a score is a share, to be shown in percent, and not a count."""
    return not name.startswith(ROUNDS_TO)


def explain(name: str) -> str:
    """What a score means, in words."""
    if not is_accuracy(name):
        return f"rounds until the shared model first reached {float(name.partition(':')[2]):.0%} on the global test set"
    score, _, kind = name.partition(".")
    return f"{MEANINGS[score]}, {KINDS[kind or 'final']}"


def read_score(outcome: Outcome, name: str, cuts: Sequence[float] = CUTS) -> float | None:
    """A finished cell's score; None if it was not measured, or the goal not reached."""
    if outcome.state != "finished":
        return None
    if name in GROUPS:
        counts = outcome.summary.get("train_per_class", {})  # runs of earlier versions have none
        return accuracy_by_group(outcome.summary["per_class"], counts, cuts)[name]
    kind, _, goal = name.partition(":")
    if kind == ROUNDS_TO:
        reached = (line["round"] for line in outcome.history if (line.get("generic") or 0.0) >= float(goal))
        return next(reached, None)
    score, _, kind = name.partition(".")
    value: float | None = outcome.summary["scores"][score][kind]
    return value


@dataclass(frozen=True)
class Figure:
    """A score over seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        """The mean; None without any value."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds; None with fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], name: str, cuts: Sequence[float] = CUTS) -> Figure:
        """The score of those cells that have it."""
        values = [read_score(outcome, name, cuts) for outcome in outcomes]
        return cls(tuple(value for value in values if value is not None))
