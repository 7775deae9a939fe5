"""Every measure of predicted numbers, or of several labels at once, as plain numbers for `summary.json`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedframe.core.measures import METRICS, NUMBER_METRICS, Evidence, brier
from fedframe.core.target_measures import LabelEvidence, NumberSums
from fedframe.metrics.measure_table import plain


def target_table(evidence: Evidence, names: Sequence[str], at: float) -> dict[str, Any]:
    """All measures of all predictions together, and of each target or label."""
    if isinstance(evidence, NumberSums):
        return number_table(evidence, names)
    assert isinstance(evidence, LabelEvidence)
    return label_table(evidence, names, at)


def number_table(evidence: NumberSums, names: Sequence[str]) -> dict[str, Any]:
    """Errors and R2."""
    return {
        "samples": evidence.samples,
        **{metric: plain(evidence.measured(metric)) for metric in NUMBER_METRICS},
        "per_target": {
            name: {metric: plain(evidence.of_output(t, metric)) for metric in NUMBER_METRICS}
            for t, name in enumerate(names)
        },
    }


def label_table(evidence: LabelEvidence, names: Sequence[str], at: float) -> dict[str, Any]:
    """The measures of two classes, mean over labels and of each; how many samples have the label."""
    per_label = {}
    for number, name in enumerate(names):
        label = evidence.labels[number]
        each = {metric: plain(evidence.of_label(number, metric, at)) for metric in METRICS}
        held = int(label.confusion[1].sum())
        per_label[name] = {"samples": held, **each, "brier": plain(brier(label))}
    return {
        "samples": evidence.samples,
        **{metric: plain(evidence.measured(metric, at)) for metric in METRICS},
        "at": at,
        "positive": None,
        "per_label": per_label,
    }
