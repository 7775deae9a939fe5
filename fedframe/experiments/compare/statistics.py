"""What came out of a comparison: scores over seeds, differences to the baseline, costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedframe.core.measures import is_share
from fedframe.experiments.compare.address import METHOD_SETTINGS
from fedframe.experiments.compare.plan import AS_THEY_ARE, Plan
from fedframe.experiments.compare.rows import Candidate
from fedframe.experiments.compare.tuning import Tuned
from fedframe.experiments.grid.cell import Outcome
from fedframe.experiments.grid.scores import COSTS, ROUNDS_TO, SECONDS_TO, explain, read_score
from fedframe.metrics.statistics import Difference, Estimate, against_baseline, estimate

ACCURACIES = ("generic.final", "generic.last_five", "client.final", "personal.final")
NEW = "new.final"  # only where clients were kept out of the training


@dataclass(frozen=True)
class ComparisonStatistics:
    """The outcomes of methods by seeds, and the statistics over them."""

    plan: Plan
    outcomes: Mapping[str, Sequence[Outcome]]  # by label, in the order of the seeds; none if nothing could be chosen
    command: str
    tuned: Tuned | None = None
    remarks: Sequence[str] = ()  # sentences on the settings, known before anything was run

    @cached_property
    def labels(self) -> list[str]:
        """The methods as they are called in the tables."""
        return [row.label for row in self.plan.rows]

    @property
    def baseline(self) -> str:
        """The method that the others are compared with."""
        return self.plan.baseline

    @cached_property
    def metric(self) -> str:
        """What the scores are; accuracy in runs of earlier versions."""
        done = [outcome for found in self.outcomes.values() for outcome in found if outcome.state == "finished"]
        found = {str(outcome.summary.get("metric", "accuracy")) for outcome in done}
        return found.pop() if len(found) == 1 else "accuracy"

    @cached_property
    def knows_classes(self) -> bool:
        """Whether classes are learned, not numbers or several labels."""
        done = [outcome for found in self.outcomes.values() for outcome in found if outcome.state == "finished"]
        return all(outcome.summary.get("task", "classification") == "classification" for outcome in done)

    @cached_property
    def target(self) -> float | None:
        """The accuracy that rounds and seconds are counted to: as asked, or what the baseline reaches.

        That is its mean of the last five evaluations, over seeds, rounded down to a whole percent. None of errors.
        """
        if not is_share(self.metric):
            return None
        if self.plan.target is not None:
            return self.plan.target
        reached = self.estimate(self.baseline, "generic.last_five").mean
        return None if reached is None or reached < 0.01 else min(99, math.floor(100 * reached)) / 100

    @cached_property
    def cost_scores(self) -> list[str]:
        """The names of what is counted beside accuracy."""
        goals = [f"{ROUNDS_TO}:{self.target:g}", f"{SECONDS_TO}:{self.target:g}"] if self.target is not None else []
        return [*goals, *COSTS]

    @cached_property
    def accuracies(self) -> list[str]:
        """The accuracies that at least one method has."""
        names = dict.fromkeys((*ACCURACIES, NEW, *self.plan.scores))
        return [name for name in names if any(self.estimate(label, name).count for label in self.labels)]

    def estimate(self, label: str, score: str) -> Estimate:
        """A method's score over seeds."""
        none = [None] * len(self.plan.seeds)
        return estimate([read_score(outcome, score) for outcome in self.outcomes[label]] or none)

    @cached_property
    def scores(self) -> dict[str, dict[str, Estimate]]:
        """All scores: `comparison.scores["fedavg"]["generic.final"].mean`."""
        return {label: {name: self.estimate(label, name) for name in self.definitions} for label in self.labels}

    @cached_property
    def differences(self) -> dict[str, dict[str, Difference]]:
        """By method and score, without the baseline; p-values also adjusted within each score."""
        others = [label for label in self.labels if label != self.baseline]
        found: dict[str, dict[str, Difference]] = {label: {} for label in others}
        for score in self.accuracies:
            values = [self.scores[label][score].values for label in others]
            differences = against_baseline(values, self.scores[self.baseline][score].values)
            for label, each in zip(others, differences, strict=True):
                found[label][score] = each
        return found

    @cached_property
    def all_outcomes(self) -> list[Outcome]:
        """What has become of all runs, those that tune first."""
        finals = [outcome for found in self.outcomes.values() for outcome in found]
        return [*(self.tuned.outcomes if self.tuned is not None else ()), *finals]

    @property
    def failed(self) -> list[Outcome]:
        """Runs that failed and would be tried again; each has its reason."""
        return [outcome for outcome in self.all_outcomes if outcome.state == "failed"]

    def chosen(self, label: str) -> Candidate | None:
        """The setting that was selected for a method, if it had candidates."""
        row = self.plan.rows[self.labels.index(label)]
        return self.tuned.chosen(row) if self.tuned is not None and self.tuned.of(row) else None

    @cached_property
    def definitions(self) -> dict[str, str]:
        """What every score means."""
        return {name: explain(name) for name in dict.fromkeys([*ACCURACIES, *self.accuracies, *self.cost_scores])}

    @cached_property
    def differing_settings(self) -> dict[str, list[str]]:
        """The settings that are not the same for all methods, by method: a reader needs them to judge the numbers.

        The text is empty where a method does not have the setting, or has its default.
        """
        found: list[dict[str, Any]] = []
        for row in self.plan.rows:
            settings = self.plan.settings_of(row, self.chosen(row.label) or AS_THEY_ARE, self.plan.seeds[0])
            parts = {f"{part}.{key}": value for part, each in settings.set.items() for key, value in each.items()}
            values = {name: getattr(settings, name) for name in METHOD_SETTINGS}
            if settings.lr_per_class is not None:  # it counts instead of lr
                values["lr"] = None
            found.append({**values, **parts})
        names = [*dict.fromkeys(name for values in found for name in values)]
        by_name = {name: [setting_text(values.get(name)) for values in found] for name in names}
        return {name: texts for name, texts in by_name.items() if len(set(texts)) > 1}


def setting_text(value: object) -> str:
    """A setting's value as people write it."""
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
