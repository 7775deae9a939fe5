"""The difference of two models that were tested on the same samples, with its interval.

Samples that both models get right, or both wrong, say nothing about which one is better, and are most of them: an
interval that knows the pairs is far narrower than that of two scores side by side.

accuracy, balanced accuracy   discordant pairs, as McNemar counts them (Psychometrika 1947), with half a pair added to
                              each of the four cells (Agresti and Min, Statistics in Medicine 2005); balanced accuracy
                              is the mean over classes of the same
AUROC                         the placements of both models, sample by sample (DeLong, DeLong and Clarke-Pearson 1988)
all others                    both models on the same samples, drawn 200 times
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedframe.core.measures import (
    RESAMPLES,
    ClassScores,
    Counts,
    Floats,
    Predictions,
    Z,
    average_precision,
    measure,
    placements,
    sensitivity_at,
    sign_of,
)
from fedframe.core.target_measures import Estimates, LabelPredictions, Single

AT_ONCE = 4_000_000  # weights of the bootstrap held together


@dataclass(frozen=True)
class PairedDifference:
    """A difference of two scores with its 95 % interval."""

    value: float
    error: float
    middle: float  # of the interval: nearer to 0 than the value where samples are few
    most: float = 1.0  # no difference is larger

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return max(-self.most, min(self.value, self.middle - Z * self.error))

    @property
    def high(self) -> float:
        """Its upper end."""
        return min(self.most, max(self.value, self.middle + Z * self.error))

    def plain(self) -> dict[str, float]:
        """Value and interval, for a file."""
        return {"value": self.value, "low": self.low, "high": self.high, "error": self.error}


def difference(
    first: Single, second: Single, metric: str, positive: int = 1, at: float = 0.9
) -> PairedDifference | None:
    """How much better the first model is by a metric; None where it has no meaning for these samples."""
    if isinstance(first, Estimates) and isinstance(second, Estimates):
        return difference_of_numbers(first, second, metric)
    if isinstance(first, LabelPredictions) and isinstance(second, LabelPredictions):
        return difference_of_labels(first, second, metric, at)
    assert isinstance(first, Predictions)
    assert isinstance(second, Predictions)
    if not np.array_equal(first.labels, second.labels):
        raise ValueError("the two models were not tested on the same samples")
    scores = [measure(each, metric, positive, at) for each in (first, second)]
    if scores[0] is None or scores[1] is None:
        return None
    if metric in ("accuracy", "balanced_accuracy"):
        return difference_of_shares(first, second, by_class=metric == "balanced_accuracy")
    value = scores[0].value - scores[1].value
    classes = [positive] if first.classes == 2 else list(range(first.classes))
    if metric == "auroc":
        moved = moved_auroc(first, classes) - moved_auroc(second, classes)
        error = math.sqrt(float(moved @ moved))
    else:
        error = bootstrap_error(first, second, metric, classes, at)
    fewest = np.bincount(first.labels)
    return PairedDifference(value, error or least_error(int(fewest[fewest > 0].min())), value)


def difference_of_numbers(first: Estimates, second: Estimates, metric: str) -> PairedDifference | None:
    """Of predicted numbers, from how each sample moves both measures; positive if the first model is better."""
    if not np.array_equal(first.truth, second.truth):
        raise ValueError("the two models were not tested on the same samples")
    scores = [measure(each, metric) for each in (first, second)]
    if scores[0] is None or scores[1] is None:
        return None
    value = sign_of(metric) * (scores[0].value - scores[1].value)
    moved, count = first.influences(metric) - second.influences(metric), first.samples
    error = math.sqrt(float(moved @ moved) / count / (count - 1)) if count > 1 else scores[0].error + scores[1].error
    return PairedDifference(value, error or 1e-12, value, math.inf)


def difference_of_labels(
    first: LabelPredictions, second: LabelPredictions, metric: str, at: float
) -> PairedDifference | None:
    """The mean over labels. Their errors depend on each other: the mean of them is the most that its own can be."""
    pairs = zip(first.labels, second.labels, strict=True)
    known = [found for a, b in pairs if (found := difference(a, b, metric, 1, at)) is not None]
    if not known:
        return None
    found = mean_difference(known)
    return PairedDifference(found.value, sum(one.error for one in known) / len(known), found.middle)


# -- right or wrong ----------------------------------------------------------------------------------------------------
def difference_of_shares(first: Predictions, second: Predictions, by_class: bool) -> PairedDifference:
    """Of right predictions, or the mean over classes of the same."""
    right = [each.predicted == each.labels for each in (first, second)]
    strata = [first.labels == c for c in np.unique(first.labels)] if by_class else [np.ones(first.samples, dtype=bool)]
    found = [
        matched_shares(
            int((right[0] & ~right[1])[rows].sum()), int((~right[0] & right[1])[rows].sum()), int(rows.sum())
        )
        for rows in strata
    ]
    return mean_difference(found)


def matched_shares(better: int, worse: int, count: int) -> PairedDifference:
    """Of so many samples, those that only the first model gets right, and those that only the second does."""
    up, down, total = better + 0.5, worse + 0.5, count + 2.0
    variance = (up + down - (up - down) ** 2 / total) / total**2  # Agresti and Min 2005, section 3
    return PairedDifference((better - worse) / count, math.sqrt(variance), (up - down) / total)


def mean_difference(each: Sequence[PairedDifference]) -> PairedDifference:
    """The unweighted mean of differences on samples that have nothing to do with each other."""
    error = math.sqrt(sum(one.error**2 for one in each)) / len(each)
    return PairedDifference(
        sum(one.value for one in each) / len(each), error, sum(one.middle for one in each) / len(each)
    )


def least_error(count: int) -> float:
    """The error where no sample tells the models apart: that of shares, which is never 0."""
    return matched_shares(0, 0, count).error


# -- the order of scores -----------------------------------------------------------------------------------------------
def moved_auroc(predictions: Predictions, classes: Sequence[int]) -> Floats:
    """How far each sample moves the AUROC (mean over classes): their squares add up to DeLong's variance."""
    moved, counted = np.zeros(predictions.samples), 0
    for c in classes:
        _, place = np.unique(predictions.probabilities[:, c], return_inverse=True)
        mine = predictions.labels == c
        own, others, size = int(mine.sum()), int((~mine).sum()), int(place.max(initial=-1)) + 1
        if not own or not others:
            continue
        counts = ClassScores(np.bincount(place[mine], minlength=size), np.bincount(place[~mine], minlength=size))
        below, above = placements(counts)
        value = float(counts.own @ below) / own
        scale = [math.sqrt(max(n - 1, 1) * n) for n in (own, others)]
        moved += np.where(mine, (below[place] - value) / scale[0], (above[place] - value) / scale[1])
        counted += 1
    return moved / max(counted, 1)


# -- everything else ---------------------------------------------------------------------------------------------------
def bootstrap_error(first: Predictions, second: Predictions, metric: str, classes: Sequence[int], at: float) -> float:
    """The spread of the difference over resampled samples, the same ones for both models."""
    draw, found = np.random.default_rng(0), list[Floats]()
    groups = (
        [np.arange(first.samples)] if metric == "f1" else [np.flatnonzero(first.labels == c) for c in classes_of(first)]
    )
    together = max(1, AT_ONCE // max(first.samples, 1))
    for start in range(0, RESAMPLES, together):
        weights = np.zeros((min(together, RESAMPLES - start), first.samples))
        for rows in groups:
            weights[:, rows] = draw.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), len(weights))
        found.append(resampled(first, weights, metric, classes, at) - resampled(second, weights, metric, classes, at))
    spread = float(np.concatenate(found).std(ddof=1))
    return spread if spread > 1e-12 else 0.0


def classes_of(predictions: Predictions) -> Counts:
    """The classes that occur."""
    return np.unique(predictions.labels)


def resampled(predictions: Predictions, weights: Floats, metric: str, classes: Sequence[int], at: float) -> Floats:
    """A metric for every row of weights: how often each sample was drawn."""
    if metric == "f1":
        return resampled_f1(predictions, weights)
    formulas: dict[str, Callable[[Floats, Floats], Floats]] = {
        "average_precision": lambda own, others: average_precision(own, others),
        "sensitivity": lambda own, others: sensitivity_at(own, others, at),
        "specificity": lambda own, others: sensitivity_at(others[..., ::-1], own[..., ::-1], at),
    }
    each = []
    for c in classes:
        mine = predictions.labels == c
        if mine.any() and not mine.all():
            column = predictions.probabilities[:, c]
            order = np.argsort(column, kind="stable")
            starts = np.flatnonzero(np.diff(column[order], prepend=-1.0))
            own, others = (np.add.reduceat(weights[:, order] * kind[order], starts, axis=1) for kind in (mine, ~mine))
            each.append(formulas[metric](own, others))
    found: Floats = np.mean(each, axis=0)
    return found


def resampled_f1(predictions: Predictions, weights: Floats) -> Floats:
    """The mean over classes of F1, where a class that was neither drawn nor predicted is left out."""
    C, n = predictions.classes, np.arange(predictions.samples)
    true, said = np.zeros((len(n), C)), np.zeros((len(n), C))
    true[n, predictions.labels] = said[n, predictions.predicted] = 1
    hits, both = weights @ (true * said), weights @ (true + said)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = np.nanmean(np.where(both > 0, 2 * hits / both, np.nan), axis=1)
    return found
