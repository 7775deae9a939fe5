"""Measures of predictions, each with its standard error: how good a model is by what its trade counts.

All are computed from what can be added up over clients: for every class the scores of its own samples and of all
others, as counts in the order of the scores (one count per distinct score where predictions are at hand, else per bin),
and the confusion matrix. So one formula serves single predictions and sums over organisations (`tally.py`).

AUROC: Hanley and McNeil, Radiology 1982; its error: DeLong, DeLong and Clarke-Pearson, Biometrics 1988. Average
precision, F1, balanced accuracy and the Brier score are scikit-learn's; tests hold all of them together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Draws = tuple[Counts, Counts]  # of the bootstrap: the class's own samples and all others, a row per draw
Z = 1.959963984540054  # 95 % of a normal distribution lie within so many standard errors
RESAMPLES = 200  # of the bootstrap; for a standard error more change little
CELLS = 256  # distinct scores that the bootstrap keeps apart: neighbours beyond that are resampled together
METRICS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy (mean over classes of the share of their samples that is recognised)",
    "auroc": "AUROC (area under the ROC curve; with more than two classes one against the rest, mean over classes)",
    "average_precision": "average precision (area under precision over recall; with more than two classes one against "
    "the rest, mean over classes)",
    "f1": "F1 (harmonic mean of precision and recall, mean over classes)",
    "sensitivity": "sensitivity at the set specificity (with more than two classes one against the rest, mean)",
    "specificity": "specificity at the set sensitivity (with more than two classes one against the rest, mean)",
}
OF_CLASS = ("auroc", "average_precision", "sensitivity", "specificity")  # what one class against the rest has
NUMBER_METRICS = {  # of predicted numbers
    "mae": "mean absolute error (in the target's units; mean over targets; lower is better)",
    "rmse": "root mean squared error (in the target's units; mean over targets; lower is better)",
    "r2": "R2 (share of the target's variance that is explained, 1 - squared error / variance; mean over targets)",
}
LOWER_IS_BETTER = ("mae", "rmse")
SHORT = {"auroc": "AUROC", "f1": "F1", "mae": "mean absolute error", "rmse": "root mean squared error", "r2": "R2"}


def is_share(metric: str) -> bool:
    """Whether a metric lies between 0 and 1, so that people read it in percent."""
    return metric not in NUMBER_METRICS


def sign_of(metric: str) -> int:
    """1 where more is better, -1 where less is: for errors."""
    return -1 if metric in LOWER_IS_BETTER else 1


def meaning(metric: str) -> str:
    """What a metric is, in words."""
    return {**METRICS, **NUMBER_METRICS}[metric]


def bounds_of(metric: str) -> tuple[float, float]:
    """Between which numbers a metric lies."""
    return {"mae": (0.0, math.inf), "rmse": (0.0, math.inf), "r2": (-math.inf, 1.0)}.get(metric, (0.0, 1.0))


def metric_name(metric: str) -> str:
    """A metric as people call it."""
    return SHORT.get(metric, metric.replace("_", " "))


@dataclass(frozen=True)
class Measured:
    """A measure with its standard error, which is never 0: a few samples prove nothing, also if all are right."""

    value: float
    error: float
    interval: tuple[float, float] | None = None  # where it is not value ± 1.96 errors
    bounds: tuple[float, float] = (0.0, 1.0)  # no interval reaches beyond

    @property
    def low(self) -> float:
        """The lower end of the 95 % interval."""
        return self.interval[0] if self.interval else max(self.bounds[0], self.value - Z * self.error)

    @property
    def high(self) -> float:
        """Its upper end."""
        return self.interval[1] if self.interval else min(self.bounds[1], self.value + Z * self.error)


@dataclass(frozen=True)
class ClassScores:
    """The scores of one class: how many of its own samples, and of all others, have each; in rising order."""

    own: Counts
    others: Counts

    @property
    def usable(self) -> bool:
        """Whether there are samples of both kinds."""
        return bool(self.own.sum()) and bool(self.others.sum())


class Evidence(Protocol):
    """What measures are computed from."""

    @property
    def samples(self) -> int:
        """How many predictions it is about."""

    @property
    def classes(self) -> int:
        """How many classes there are."""

    @property
    def confusion(self) -> Counts:
        """Samples by true (row) and predicted class."""

    def scores(self, c: int) -> ClassScores:
        """The scores of a class."""

    @property
    def brier_sums(self) -> tuple[float, float]:
        """Squared errors of the probabilities, summed over samples; and their squares."""


class Predictions:
    """Single predictions: probabilities (n, C), true classes, and which class is predicted (default: the likeliest)."""

    def __init__(
        self, probabilities: npt.ArrayLike, labels: npt.ArrayLike, predicted: npt.ArrayLike | None = None
    ) -> None:
        # A model that has diverged gives NaN: it is sure of nothing.
        self.probabilities: Floats = np.nan_to_num(np.asarray(probabilities, dtype=np.float64), nan=0.0)
        self.labels: Counts = np.asarray(labels, dtype=np.int64)
        likeliest = self.probabilities.argmax(1) if predicted is None and len(self.labels) else predicted
        self.predicted: Counts = self.labels if likeliest is None else np.asarray(likeliest, dtype=np.int64)

    def __eq__(self, other: object) -> bool:
        mine, theirs = (vars(one).get for one in (self, other))
        names = ("probabilities", "labels", "predicted")
        return isinstance(other, Predictions) and all(np.array_equal(mine(n), theirs(n)) for n in names)  # type: ignore[arg-type]

    __hash__ = None  # type: ignore[assignment]

    @property
    def samples(self) -> int:
        """How many predictions there are."""
        return len(self.labels)

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return int(self.probabilities.shape[1])

    @cached_property
    def confusion(self) -> Counts:
        """Samples by true (row) and predicted class."""
        C = self.classes
        return np.bincount(self.labels * C + self.predicted, minlength=C * C).reshape(C, C).astype(np.int64)

    def scores(self, c: int) -> ClassScores:
        """The scores of a class: a count for every distinct probability."""
        _, place = np.unique(self.probabilities[:, c], return_inverse=True)
        own, size = self.labels == c, int(place.max(initial=-1)) + 1
        return ClassScores(np.bincount(place[own], minlength=size), np.bincount(place[~own], minlength=size))

    @property
    def brier_sums(self) -> tuple[float, float]:
        """Squared errors of the probabilities, summed over samples; and their squares."""
        each = squared_errors(self.probabilities, self.labels)
        return float(each.sum()), float((each**2).sum())

    @property
    def right(self) -> Floats:
        """Which predictions are right, as 1 and 0."""
        found: Floats = (self.predicted == self.labels).astype(np.float64)
        return found

    def of(self, rows: Counts | slice) -> Predictions:
        """Some of the predictions."""
        return Predictions(self.probabilities[rows], self.labels[rows], self.predicted[rows])

    def split(self, sizes: Sequence[int]) -> list[Predictions]:
        """The predictions of one client after the other, which have so many each."""
        ends = np.cumsum(sizes).tolist()
        return [self.of(slice(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


def squared_errors(probabilities: Floats, labels: Counts) -> Floats:
    """The Brier score of every sample: of two classes (p - y)^2, of more their sum over classes."""
    target = np.zeros_like(probabilities)
    target[np.arange(len(labels)), labels] = 1
    both: Floats = ((probabilities - target) ** 2).sum(1)
    return both / 2 if probabilities.shape[1] == 2 else both


# -- one number, by name -----------------------------------------------------------------------------------------------
class ClassMeasures:
    """What `OF_CLASS` names, of each class against the rest; computed once, with one set of bootstrap draws a class."""

    def __init__(self, evidence: Evidence, at: float = 0.9) -> None:
        self.evidence, self.at = evidence, at
        self.found: dict[int, dict[str, Measured | None]] = {}

    def of(self, c: int) -> dict[str, Measured | None]:
        """All of them, of one class."""
        if c not in self.found:
            scores = self.evidence.scores(c)
            draws = resample(scores) if scores.usable else None
            self.found[c] = {metric: of_class(scores, metric, self.at, draws) for metric in OF_CLASS}
        return self.found[c]


def measure(
    evidence: Evidence, metric: str, positive: int = 1, at: float = 0.9, by_class: ClassMeasures | None = None
) -> Measured | None:
    """A metric with its error; None where it has no meaning, such as AUROC with samples of one class only.

    Of two classes, `positive` is the one that AUROC, average precision, sensitivity and specificity are about. `at` is
    the specificity at which sensitivity is read off, or the other way round. `by_class` has each class's measures of
    the same evidence, for callers that want them all.
    """
    if not evidence.samples:
        return None
    own = getattr(evidence, "measured", None)  # of numbers, and of several labels at once
    if own is not None:
        found_otherwise: Measured | None = own(metric, at)
        return found_otherwise
    if metric in ("accuracy", "balanced_accuracy", "f1"):
        found = {"accuracy": accuracy, "balanced_accuracy": balanced_accuracy, "f1": macro_f1}
        return found[metric](evidence.confusion)
    if metric == "auroc" and isinstance(evidence, Predictions) and evidence.classes > 2:
        return macro_auroc(evidence)
    chosen = [positive] if evidence.classes == 2 else range(evidence.classes)
    if by_class is not None:
        return mean_over([by_class.of(c)[metric] for c in chosen])
    return mean_over([of_class(evidence.scores(c), metric, at) for c in chosen])


def of_class(scores: ClassScores, metric: str, at: float = 0.9, draws: Draws | None = None) -> Measured | None:
    """A metric of one class against the rest; with bootstrap draws of these scores, if there are any yet."""
    if not scores.usable:
        return None
    if metric == "auroc":
        return auroc(scores)
    if metric == "average_precision":
        return bootstrapped(scores, average_precision, draws)
    if metric == "sensitivity":
        return bootstrapped(scores, lambda own, others: sensitivity_at(own, others, at), draws)
    # Specificity at a sensitivity is the same question with the two kinds of samples, and the order, exchanged.
    return bootstrapped(scores, lambda own, others: sensitivity_at(others[..., ::-1], own[..., ::-1], at), draws)


def mean_over(each: Sequence[Measured | None]) -> Measured | None:
    """The mean over classes. Their errors depend on each other: the mean of them is the most that its own can be."""
    known = [one for one in each if one is not None]
    if not known:
        return None
    return Measured(
        sum(one.value for one in known) / len(known),
        sum(one.error for one in known) / len(known),
        known[0].interval if len(known) == 1 else None,
        known[0].bounds,
    )


def mean_of_independent(each: Sequence[Measured]) -> Measured | None:
    """The unweighted mean over clients, whose test samples have nothing to do with each other."""
    if not each:
        return None
    error = math.sqrt(sum(one.error**2 for one in each)) / len(each)
    return Measured(sum(one.value for one in each) / len(each), error, None, each[0].bounds)


def brier(evidence: Evidence) -> Measured | None:
    """The mean squared error of the probabilities (Brier 1950); lower is better."""
    count = evidence.samples
    if not count:
        return None
    total, squares = evidence.brier_sums
    mean = total / count
    variance = max(squares / count - mean**2, 0.0) / max(count - 1, 1)
    error = max(math.sqrt(variance), smoothed_error(min(mean, 1.0), count) if count < 2 else 0.0)
    return Measured(mean, error, (max(0.0, mean - Z * error), mean + Z * error))


# -- from the confusion matrix -----------------------------------------------------------------------------------------
def smoothed_error(share: float, count: float) -> float:
    """The standard error of a share with one success and one failure added: not 0 where all samples are alike."""
    p = (share * count + 1) / (count + 2)
    return math.sqrt(p * (1 - p) / (count + 3))


def share_of(hits: float, count: float) -> Measured:
    """A share of samples with Wilson's interval (1927)."""
    p = hits / count
    middle = (p + Z**2 / (2 * count)) / (1 + Z**2 / count)
    half = Z / (1 + Z**2 / count) * math.sqrt(p * (1 - p) / count + Z**2 / (4 * count**2))
    interval = (min(p, max(0.0, middle - half)), max(p, min(1.0, middle + half)))
    return Measured(p, smoothed_error(p, count), interval)


def accuracy(confusion: Counts) -> Measured:
    """The share of right predictions."""
    return share_of(float(confusion.trace()), float(confusion.sum()))


def balanced_accuracy(confusion: Counts) -> Measured:
    """The mean over tested classes of the share of their samples that is recognised."""
    totals = confusion.sum(1)
    tested = totals > 0
    shares = confusion.diagonal()[tested] / totals[tested]
    errors = [smoothed_error(p, n) for p, n in zip(shares.tolist(), totals[tested].tolist(), strict=True)]
    return Measured(float(shares.mean()), math.sqrt(sum(e * e for e in errors)) / len(errors))


def class_f1(confusion: Counts | Floats) -> Floats:
    """F1 of each class, 2 TP / (2 TP + FP + FN); NaN for one that neither occurs nor is predicted."""
    hits = np.diagonal(confusion, axis1=-2, axis2=-1)
    both = confusion.sum(-1) + confusion.sum(-2)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(both > 0, 2 * hits / both, np.nan)


def f1_of_class(hits: int, named_or_own: int) -> Measured:
    """F1 of one class; `named_or_own` counts TP + FP + FN.

    With the share q of hits among these it is 2 q / (1 + q), which rises with q: the ends of q's interval give its own.
    """
    q = share_of(hits, named_or_own)
    value, low, high = (2 * share / (1 + share) for share in (q.value, q.low, q.high))
    return Measured(value, 2 * q.error / (1 + q.value) ** 2, (low, high))


def mean_f1(confusion: Counts, weighted: bool = False) -> float:
    """The mean over classes of F1; weighted, by the samples of each class."""
    each, sizes = class_f1(confusion), confusion.sum(1)
    return float((each[sizes > 0] * sizes[sizes > 0]).sum() / sizes.sum()) if weighted else float(np.nanmean(each))


def macro_f1(confusion: Counts) -> Measured:
    """The mean over classes of F1; its error by resampling the samples."""
    value = mean_f1(confusion)
    count = int(confusion.sum())
    drawn = np.random.default_rng(0).multinomial(count, confusion.ravel() / count, RESAMPLES)
    spread = float(np.nanmean(class_f1(drawn.reshape(RESAMPLES, *confusion.shape)), axis=-1).std(ddof=1))
    totals = confusion.sum(1)
    return Measured(value, spread or smoothed_error(value, int(totals[totals > 0].min())))


# -- from the order of scores ------------------------------------------------------------------------------------------
def placements(scores: ClassScores) -> tuple[Floats, Floats]:
    """For each score: the share of others below it, and the share of the class's own above it; ties count half."""
    own, others = scores.own.astype(np.float64), scores.others.astype(np.float64)
    below = (others.cumsum() - others / 2) / others.sum()
    above = 1 - (own.cumsum() - own / 2) / own.sum()
    return below, above


def auroc(scores: ClassScores) -> Measured:
    """The chance that a sample of the class has a higher score than another one; DeLong's error."""
    own, others = float(scores.own.sum()), float(scores.others.sum())
    below, above = placements(scores)
    value = float(scores.own @ below) / own
    error = smoothed_error(value, min(own, others))
    if own > 1 and others > 1:
        variance = float(scores.own @ (below - value) ** 2) / (own - 1) / own
        variance += float(scores.others @ (above - value) ** 2) / (others - 1) / others
        error = math.sqrt(variance) or error
    return Measured(value, error)


def bins_error(scores: ClassScores) -> float:
    """How far the AUROC of binned scores can be from the exact one: half of the pairs that share a bin."""
    return float(scores.own @ scores.others) / (2 * float(scores.own.sum()) * float(scores.others.sum()))


def macro_auroc(predictions: Predictions) -> Measured | None:
    """The mean over classes, with the error of the mean: each sample moves the AUROC of all classes at once."""
    values, moved = [], np.zeros(predictions.samples)
    for c in range(predictions.classes):
        column = predictions.probabilities[:, c]
        _, place = np.unique(column, return_inverse=True)
        mine = predictions.labels == c
        size = int(place.max(initial=-1)) + 1
        scores = ClassScores(np.bincount(place[mine], minlength=size), np.bincount(place[~mine], minlength=size))
        if not scores.usable:
            continue
        below, above = placements(scores)
        own, others = int(mine.sum()), int((~mine).sum())
        value = float(scores.own @ below) / own
        values.append(value)
        moved += np.where(mine, (below[place] - value) / max(own - 1, 1), (above[place] - value) / max(others - 1, 1))
    if not values:
        return None
    value = sum(values) / len(values)
    fewest = np.bincount(predictions.labels)
    spread = math.sqrt(float(moved @ moved)) / len(values)
    return Measured(value, spread or smoothed_error(value, int(fewest[fewest > 0].min())))


def average_precision(own: Counts | Floats, others: Counts | Floats) -> Floats:
    """The sum over thresholds, from the highest, of precision times the step in recall (as scikit-learn)."""
    hits, false = own[..., ::-1].cumsum(-1), others[..., ::-1].cumsum(-1)
    with np.errstate(invalid="ignore"):
        precision = np.where(hits > 0, hits / (hits + false), 0.0)
    return np.asarray((precision * own[..., ::-1]).sum(-1) / np.maximum(own.sum(-1), 1))


def sensitivity_at(own: Counts | Floats, others: Counts | Floats, specificity: float) -> Floats:
    """The largest share of the class's own at or above a threshold that keeps so many of the others below it."""
    hits = own[..., ::-1].cumsum(-1) / np.maximum(own.sum(-1, keepdims=True), 1)
    false = others[..., ::-1].cumsum(-1) / np.maximum(others.sum(-1, keepdims=True), 1)
    return np.asarray(np.where(false <= 1 - specificity + 1e-12, hits, 0.0).max(-1))


def resample(scores: ClassScores) -> Draws:
    """Samples of each kind, resampled many times: the counts of the class's own and of all others, in merged scores."""
    coarse = merged(scores, CELLS)
    draw = np.random.default_rng(0)
    own, others = (
        draw.multinomial(int(counts.sum()), counts / counts.sum(), RESAMPLES) for counts in (coarse.own, coarse.others)
    )
    return own, others


def bootstrapped(
    scores: ClassScores, formula: Callable[[Counts, Counts], Floats], draws: Draws | None = None
) -> Measured:
    """A formula's value, and its error over samples that are resampled within each kind."""
    value = float(formula(scores.own, scores.others))
    spread = float(formula(*(draws or resample(scores))).std(ddof=1))
    fewest = min(int(scores.own.sum()), int(scores.others.sum()))
    return Measured(value, spread if spread > 1e-12 else smoothed_error(value, fewest))


def merged(scores: ClassScores, cells: int) -> ClassScores:
    """Neighbouring scores counted together, so that about `cells` are left, each with as many samples."""
    total = scores.own + scores.others
    some = total > 0
    own, others, total = scores.own[some], scores.others[some], total[some]
    if len(total) <= cells:
        return ClassScores(own, others)
    group = ((total.cumsum() - 1) * cells // total.sum()).astype(np.int64)
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    return ClassScores(np.add.reduceat(own, starts), np.add.reduceat(others, starts))
