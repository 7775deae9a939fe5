"""Scores of cells by name, and their mean over seeds.

generic.final, personal.last_five, ...   as in summary.json
client.worst_tenth, personal.worst_tenth mean of the worst tenth of the clients
balanced                                 mean over the classes of the saved shared model's accuracy on each
many, medium, few                        accuracy of the saved shared model on frequent, middling and rare classes
rounds_to:0.33, seconds_to:0.33          rounds, and seconds in them, until the generic accuracy first reached 0.33
bytes_up, bytes_down, bytes_after, bytes_head, cpu_seconds, seconds   what the run cost
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedframe.errors import SettingError, nearest
from fedframe.experiments.grid.cell import Outcome
from fedframe.metrics.accuracy import CUTS, GROUPS, accuracy_by_group

PLAIN = {f"{score}.{kind}" for score in ("generic", "client", "personal") for kind in ("final", "last", "last_five")}
PLAIN |= {"client.weighted", "personal.weighted", "new.final", "new.weighted"}
PLAIN |= {"personal.f1", "personal.f1_weighted"}
WORST_TENTH = "worst_tenth"
PLAIN |= {f"client.{WORST_TENTH}", f"personal.{WORST_TENTH}"}
BALANCED = "balanced"
ROUNDS_TO, SECONDS_TO = "rounds_to", "seconds_to"
COSTS = {
    "bytes_up": "bytes that all clients together sent, in all rounds and in the stages after them",
    "bytes_down": "bytes that all clients together received, in all rounds and in the stages after them, and what they "
    "received only once",
    "bytes_after": "bytes that all clients together sent and received in the stages after the last round; they are "
    "among the others",
    "cpu_seconds": "processor seconds of all processes of the run, with evaluation and all stages",
    "seconds": "seconds from start to end of the run, with evaluation and all stages",
}
BYTES_HEAD = "bytes_head"
HEAD_MEANING = (
    "bytes that one client sends and receives for the classifier, mean over clients: the classifier in all rounds, and "
    "in the server stage all but the backbone"
)
MEANINGS = {
    "generic": "the shared model on the global test set",
    "client": "the shared model on each client's own test data, mean over clients",
    "personal": "each client's own model on its own test data, mean over clients",
    "new": "own models of clients that were kept out of the training, on their own test data, mean over them",
    "balanced": "the shared model on each class of the global test set, mean over classes",
    "many": "the shared model on the test samples of frequent classes",
    "medium": "the shared model on the test samples of middling classes",
    "few": "the shared model on the test samples of rare classes",
}
KINDS = {
    "final": "the saved models, after all stages",
    "last": "after the last round",
    "last_five": "mean of the last five evaluations",
    "weighted": "the saved models; clients count by their test samples",
    "f1": "the saved models; in place of accuracy F1, mean over a client's classes",
    "f1_weighted": "the saved models; in place of accuracy F1, mean over a client's classes by their test samples",
    WORST_TENTH: "the saved models; mean of the tenth of the clients that have it worst",
}
SHORT_KINDS = {"final": "", "last": ", last round", "last_five": ", last five"}
SHORT_KINDS |= {"f1": " F1", "f1_weighted": " weighted F1", WORST_TENTH: ", worst tenth"}
COST_HEADINGS = {
    "bytes_up": "MB up",
    "bytes_down": "MB down",
    "bytes_after": "MB after rounds",
    "cpu_seconds": "CPU seconds",
    "seconds": "seconds",
}


def check_score(name: str) -> str:
    """The name of a score, if there is such a score."""
    kind, colon, goal = name.partition(":")
    plain = [*sorted(PLAIN), BALANCED, *GROUPS, *COSTS, BYTES_HEAD]
    if name in plain or (kind in (ROUNDS_TO, SECONDS_TO) and colon and is_share(goal)):
        return name
    raise SettingError(
        f"There is no score {name!r}; {nearest(name, [*plain, f'{ROUNDS_TO}:0.5', f'{SECONDS_TO}:0.5'])}"
    )


def is_share(text: str) -> bool:
    """Whether a text is a number between 0 and 1."""
    try:
        return 0 < float(text) < 1
    except ValueError:
        return False


def is_accuracy(name: str) -> bool:
    """Whether a score is a share, to be shown in percent, and not a count or a cost."""
    return name.partition(":")[0] not in (ROUNDS_TO, SECONDS_TO, *COSTS, BYTES_HEAD)


def explain(name: str) -> str:
    """What a score means, in words."""
    kind, _, goal = name.partition(":")
    if kind in (ROUNDS_TO, SECONDS_TO):
        what = "rounds" if kind == ROUNDS_TO else "seconds in rounds (evaluation not counted)"
        return f"{what} until the shared model first reached {100 * float(goal):g} % on the global test set"
    if name in COSTS:
        return COSTS[name]
    if name == BYTES_HEAD:
        return HEAD_MEANING
    score, _, kind = name.partition(".")
    return f"{MEANINGS[score]}, {KINDS[kind or 'final']}"


def heading(name: str) -> str:
    """A score as the name of a column."""
    kind, _, goal = name.partition(":")
    if goal:
        return f"{'rounds' if kind == ROUNDS_TO else 'seconds'} to {100 * float(goal):g} %"
    if name in COSTS:
        return COST_HEADINGS[name]
    if name == BYTES_HEAD:
        return "MB for the classifier"
    score, _, kind = name.partition(".")
    return f"{score}{SHORT_KINDS.get(kind, '')}"


def read_score(outcome: Outcome, name: str, cuts: Sequence[float] = CUTS) -> float | None:
    """A finished cell's score; None if it was not measured, or the goal not reached."""
    if outcome.state != "finished":
        return None
    summary = outcome.summary
    if name in GROUPS:
        counts = summary.get("train_per_class", {})  # runs of earlier versions have none
        return accuracy_by_group(summary["per_class"], counts, cuts)[name]
    if name == BALANCED:
        known = [value for value in summary["per_class"].values() if value is not None]
        return statistics.fmean(known) if known else None
    if name in COSTS or name == BYTES_HEAD:
        return read_cost(summary, name)
    kind, _, goal = name.partition(":")
    if kind in (ROUNDS_TO, SECONDS_TO):
        return until(outcome, float(goal), kind)
    score, _, kind = name.partition(".")
    place = "spread" if kind == WORST_TENTH else "scores"
    value: float | None = (summary.get(place, {}).get(score) or {}).get(kind)
    return value


def read_cost(summary: Mapping[str, Any], name: str) -> float:
    """A cost of a finished run; runs of earlier versions have not counted their stages."""
    stages = summary.get("stages", {})
    if name == "bytes_after":
        return float(sum(stage["bytes_up"] + stage["bytes_down"] for stage in stages.values()))
    if name == BYTES_HEAD:
        in_rounds = [summary["bytes_by_part"].get("head", {})]
        parts = stages.get("server_stage", {}).get("bytes_by_part", {})
        counted = in_rounds + [sizes for part, sizes in parts.items() if part != "backbone"]
        return float(sum(sum(sizes.values()) for sizes in counted) / summary["clients"])
    if f"{name}_total" in summary:
        return float(summary[f"{name}_total"])
    return float(summary[name] + (summary["bytes_once"] if name == "bytes_down" else 0))


def until(outcome: Outcome, goal: float, kind: str) -> float | None:
    """Rounds, or seconds in rounds, until the generic accuracy first reached the goal; None if it never did."""
    seconds = 0.0
    for line in outcome.history:
        seconds += line.get("seconds", 0.0)
        if (line.get("generic") or 0.0) >= goal:
            return int(line["round"]) if kind == ROUNDS_TO else seconds
    return None


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
