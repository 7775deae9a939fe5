"""Every measure of some predictions with its interval, as plain numbers for `summary.json` and the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedframe.core.measures import (
    METRICS,
    ClassMeasures,
    Evidence,
    Measured,
    Predictions,
    bins_error,
    brier,
    f1_of_class,
    measure,
    share_of,
)
from fedframe.core.tally import Tally, calibration_error, make_tally

MOST_CLASSES = 30  # of which each has all measures of its own: there are four times as many, each with an interval


def measure_table(evidence: Evidence, names: Sequence[str], positive: int, at: float) -> dict[str, Any]:
    """All measures of all predictions together; of each class as well, unless there are very many."""
    counts = evidence.confusion.sum(1)
    most = int(counts.argmax())
    by_class = ClassMeasures(evidence, at)
    table: dict[str, Any] = {
        "samples": evidence.samples,
        "majority": {"class": names[most], "share": float(counts[most]) / evidence.samples},
        **{metric: plain(measure(evidence, metric, positive, at, by_class)) for metric in METRICS},
        "brier": plain(brier(evidence)),
        "calibration_error": calibration(evidence),
        "at": at,
        "positive": names[positive] if len(names) == 2 else None,
    }
    if isinstance(evidence, Tally):
        usable = [scores for c in range(len(names)) if (scores := evidence.scores(c)).usable]
        table["auroc_bins_error"] = sum(map(bins_error, usable)) / len(usable) if usable else None
    if len(names) <= MOST_CLASSES:
        table["confusion"] = evidence.confusion.tolist()  # rows are true classes
        table["per_class"] = {name: class_table(evidence, c, by_class) for c, name in enumerate(names)}
    return table


def class_table(evidence: Evidence, c: int, by_class: ClassMeasures) -> dict[str, Any]:
    """One class against the rest; `recall` and `precision` are those of the predicted classes."""
    confusion = evidence.confusion
    hits, own, named = int(confusion[c, c]), int(confusion[c].sum()), int(confusion[:, c].sum())
    either = own + named - hits
    return {
        "samples": own,
        "recall": plain(share_of(hits, own) if own else None),
        "precision": plain(share_of(hits, named) if named else None),
        "f1": plain(f1_of_class(hits, either) if either else None),
        **{metric: plain(found) for metric, found in by_class.of(c).items()},
    }


def calibration(evidence: Evidence) -> float:
    """The expected calibration error in 15 bins."""
    if isinstance(evidence, Predictions):
        evidence = Tally.of(make_tally(evidence, 1), evidence.classes, 1)
    assert isinstance(evidence, Tally)
    return calibration_error(evidence.calibration)


def plain(found: Measured | None) -> dict[str, float] | None:
    """A measure for JSON."""
    return None if found is None else {"value": found.value, "low": found.low, "high": found.high}
