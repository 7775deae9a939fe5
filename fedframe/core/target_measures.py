"""Measures of predicted numbers (regression) and of several labels at once, each with its standard error.

Numbers: the mean absolute error, the root of the mean squared error and R2, the share of the variance that is
explained, of each output; means over outputs. All come from sums over samples (`SUMS`), so that sums over organisations
give what single predictions would. Their errors are those of the delta method: a sample moves a measure by its
influence, and the variance of the influences over n is the measure's.

Labels: each is a question of two classes of its own, with all measures of `measures.py`; means over labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedframe.core.measures import (
    RESAMPLES,
    ClassScores,
    Counts,
    Evidence,
    Floats,
    Measured,
    Predictions,
    bounds_of,
    class_f1,
    mean_over,
    measure,
    smoothed_error,
)
from fedframe.core.tally import Tally, is_plausible, make_tally, tally_size
from fedframe.data.target import Target

# What is summed over samples of every output, e being prediction minus truth and y the truth, both as they are learned.
SUMS = ("n", "|e|", "e2", "e4", "y", "y2", "y3", "y4", "e2y", "e2y2")
LIMIT = 1e9  # a prediction that is further from the truth, in standard deviations, counts as that far


# -- numbers -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class NumberSums:
    """Sums over samples, by output: all that the measures of predicted numbers need."""

    sums: Floats  # (outputs, len(SUMS))
    scale: Floats  # (outputs,): what one of the learned units is in the target's own

    @property
    def samples(self) -> int:
        """How many predictions are summed."""
        return int(np.rint(self.sums[0, 0]))

    @property
    def classes(self) -> int:
        """How many outputs there are."""
        return len(self.sums)

    @property
    def confusion(self) -> Counts:
        """Numbers are not mistaken for each other: nothing."""
        return np.zeros((0, 0), dtype=np.int64)

    def scores(self, c: int) -> ClassScores:
        """Numbers have no classes: nothing."""
        return ClassScores(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))

    @property
    def brier_sums(self) -> tuple[float, float]:
        """Numbers have no probabilities: nothing."""
        return 0.0, 0.0

    def measured(self, metric: str, at: float = 0.9) -> Measured | None:
        """A measure, mean over outputs; None where it has no meaning, such as R2 where all truths are the same."""
        return mean_over([self.of_output(t, metric) for t in range(self.classes)])

    def of_output(self, t: int, metric: str) -> Measured | None:
        """A measure of one output."""
        n, absolute, e2, e4, y, y2, y3, y4, e2y, e2y2 = self.sums[t].tolist()
        if n < 1:
            return None
        scale = float(self.scale[t])
        spare = max(n - 1, 1)
        if metric == "mae":
            value = absolute / n
            return error_of(scale * value, scale * math.sqrt(max(e2 / n - value**2, 0.0) / spare), n)
        mean = e2 / n
        squares = max(e4 / n - mean**2, 0.0)  # the variance of e2
        if metric == "rmse":
            value = math.sqrt(mean)
            return error_of(scale * value, scale * math.sqrt(squares / spare) / (2 * value) if value else 0.0, n)
        # With A = mean e2, B = the variance of y and d = y - mean y: R2 = 1 - A / B, which a sample moves by
        # (A (d2 - B) / B - (e2 - A)) / B.
        m = y / n
        spread = max(y2 / n - m * m, 0.0)
        if n < 2 or spread <= 1e-12:
            return None
        d4 = y4 / n - 4 * m * y3 / n + 6 * m * m * y2 / n - 3 * m**4
        e2d2 = e2y2 / n - 2 * m * e2y / n + m * m * mean
        ratio = mean / spread
        variance = squares - 2 * ratio * (e2d2 - mean * spread) + ratio**2 * (d4 - spread**2)
        error = math.sqrt(max(variance, 0.0) / spare) / spread
        value = 1 - ratio
        return Measured(value, error or 1e-12, None, bounds_of("r2"))


def error_of(value: float, error: float, n: float) -> Measured:
    """An error, which is never below 0; one sample says nothing of how far it may be off, so it counts as all of it."""
    return Measured(value, (error if n > 1 else value) or 1e-12, None, bounds_of("mae"))


class Estimates(NumberSums):
    """Single predicted numbers beside the truth, both as they are learned: (n, outputs)."""

    def __init__(self, predicted: npt.ArrayLike, truth: npt.ArrayLike, scale: npt.ArrayLike) -> None:
        y = np.asarray(truth, dtype=np.float64)
        p = np.asarray(predicted, dtype=np.float64)
        error = np.nan_to_num(p - y, nan=LIMIT, posinf=LIMIT, neginf=-LIMIT).clip(-LIMIT, LIMIT)
        object.__setattr__(self, "error", error)
        object.__setattr__(self, "truth", y)
        object.__setattr__(self, "scale", np.asarray(scale, dtype=np.float64))

    error: Floats
    truth: Floats

    @cached_property
    def sums(self) -> Floats:
        """The sums of these predictions."""
        e, y = self.error, self.truth
        e2, y2 = e**2, y**2
        columns = [np.ones_like(e), np.abs(e), e2, e2**2, y, y2, y2 * y, y2**2, e2 * y, e2 * y2]
        return np.stack([column.sum(0) for column in columns], axis=1)

    @property
    def classes(self) -> int:
        """How many outputs there are."""
        return int(self.truth.shape[1])

    @property
    def samples(self) -> int:
        """How many predictions there are."""
        return len(self.truth)

    @property
    def right(self) -> Floats:
        """Numbers are neither right nor wrong."""
        return np.zeros(self.samples)

    def of(self, rows: Counts | slice) -> Estimates:
        """Some of the predictions."""
        return Estimates(self.truth[rows] + self.error[rows], self.truth[rows], self.scale)

    def split(self, sizes: Sequence[int]) -> list[Estimates]:
        """The predictions of one client after the other, which have so many each."""
        ends = np.cumsum(sizes).tolist()
        return [self.of(slice(end - size, end)) for size, end in zip(sizes, ends, strict=True)]

    def influences(self, metric: str) -> Floats:
        """By how much each sample moves a measure, times n; mean over outputs.

        Their variance over n is the measure's.
        """
        e2 = self.error**2
        if metric == "mae":
            moved = np.abs(self.error) - np.abs(self.error).mean(0)
        elif metric == "rmse":
            root = np.sqrt(e2.mean(0))
            moved = (e2 - e2.mean(0)) / np.where(root > 0, 2 * root, np.inf)
        else:
            d2 = (self.truth - self.truth.mean(0)) ** 2
            A, B = e2.mean(0), np.maximum(d2.mean(0), 1e-12)
            moved = (A * (d2 - B) / B - (e2 - A)) / B
        units = np.ones(self.classes) if metric == "r2" else self.scale
        found: Floats = (moved * units).mean(1)
        return found

    def __eq__(self, other: object) -> bool:
        names = ("error", "truth", "scale")
        return isinstance(other, Estimates) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in names
        )

    __hash__ = None  # type: ignore[assignment]


# -- labels ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class LabelEvidence:
    """Evidence of every label, each a question of two classes: without it, and with it."""

    labels: Sequence[Evidence]

    @property
    def samples(self) -> int:
        """How many samples it is about."""
        return self.labels[0].samples if self.labels else 0

    @property
    def classes(self) -> int:
        """How many labels there are."""
        return len(self.labels)

    @property
    def confusion(self) -> Counts:
        """Labels are not mistaken for each other: nothing."""
        return np.zeros((0, 0), dtype=np.int64)

    def scores(self, c: int) -> ClassScores:
        """The scores of a label, of the samples that have it and of the others."""
        return self.labels[c].scores(1)

    @property
    def brier_sums(self) -> tuple[float, float]:
        """Not of all labels together: each has its own."""
        return 0.0, 0.0

    def measured(self, metric: str, at: float = 0.9) -> Measured | None:
        """A measure, mean over the labels for which it has a meaning."""
        return mean_over([self.of_label(each, metric, at) for each in range(self.classes)])

    def of_label(self, number: int, metric: str, at: float = 0.9) -> Measured | None:
        """A measure of one label; F1 is that of having it."""
        label = self.labels[number]
        if not label.samples:
            return None
        return label_f1(label.confusion) if metric == "f1" else measure(label, metric, 1, at)


def label_f1(confusion: Counts) -> Measured | None:
    """F1 of having a label; its error by resampling the samples. None if nobody has it, or is said to."""
    value = float(class_f1(confusion)[1])
    if math.isnan(value):
        return None
    count = int(confusion.sum())
    drawn = np.random.default_rng(0).multinomial(count, confusion.ravel() / count, RESAMPLES)
    spread = float(np.nanstd(class_f1(drawn.reshape(RESAMPLES, 2, 2))[:, 1], ddof=1))
    return Measured(value, spread or smoothed_error(value, count))


class LabelPredictions(LabelEvidence):
    """Single predictions: probabilities (n, labels), and which labels samples have; from one half on, it is said."""

    def __init__(self, probabilities: npt.ArrayLike, truth: npt.ArrayLike) -> None:
        p = np.nan_to_num(np.asarray(probabilities, dtype=np.float64), nan=0.0)
        y = np.asarray(truth, dtype=np.float64) > 0.5
        object.__setattr__(self, "probabilities", p)
        object.__setattr__(self, "truth", y)

    probabilities: Floats
    truth: npt.NDArray[np.bool_]

    @cached_property
    def labels(self) -> Sequence[Predictions]:
        """Every label by itself."""
        p, y = self.probabilities, self.truth
        return [
            Predictions(
                np.stack([1 - p[:, c], p[:, c]], axis=1), y[:, c].astype(np.int64), (p[:, c] >= 0.5).astype(int)
            )
            for c in range(p.shape[1])
        ]

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return len(self.truth)

    @property
    def right(self) -> Floats:
        """The share of a sample's labels that is right."""
        found: Floats = ((self.probabilities >= 0.5) == self.truth).mean(1)
        return found

    def of(self, rows: Counts | slice) -> LabelPredictions:
        """Some of the predictions."""
        return LabelPredictions(self.probabilities[rows], self.truth[rows])

    def split(self, sizes: Sequence[int]) -> list[LabelPredictions]:
        """The predictions of one client after the other, which have so many each."""
        ends = np.cumsum(sizes).tolist()
        return [self.of(slice(end - size, end)) for size, end in zip(sizes, ends, strict=True)]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, LabelPredictions)
            and np.array_equal(self.probabilities, other.probabilities)
            and np.array_equal(self.truth, other.truth)
        )

    __hash__ = None  # type: ignore[assignment]


Single = Predictions | Estimates | LabelPredictions  # predictions sample by sample


# -- by task -----------------------------------------------------------------------------------------------------------
def scale_of(target: Target) -> Floats:
    """What one of the learned units is in the target's own."""
    std = target.std if target.std is not None else torch.ones(len(target.names))
    return std.double().numpy()


def single_predictions(target: Target | None, outputs: Tensor, truth: Tensor, predicted: Tensor | None) -> Single:
    """A model's answers beside the truth."""
    if target is None:
        return Predictions(outputs, truth, predicted)
    if target.task == "multilabel":
        return LabelPredictions(outputs, truth)
    return Estimates(outputs, truth, scale_of(target))


def evidence_size(target: Target | None, outputs: int, bins: int) -> int:
    """How many numbers sum up predictions (`sum_up`)."""
    if target is None:
        return tally_size(outputs, bins)
    return outputs * (len(SUMS) if target.task == "regression" else tally_size(2, bins))


def sum_up(predictions: Single, bins: int) -> Tensor:
    """All that measures need of predictions, as one vector that can be added up over clients."""
    if isinstance(predictions, Predictions):
        return make_tally(predictions, bins)
    if isinstance(predictions, LabelPredictions):
        return torch.cat([make_tally(label, bins) for label in predictions.labels])
    return torch.from_numpy(predictions.sums.ravel().copy())


def summed_evidence(target: Target | None, vector: Tensor, outputs: int, bins: int) -> Evidence:
    """What a vector of `sum_up`, or a sum of several, is evidence of."""
    if target is None:
        return Tally.of(vector, outputs, bins)
    if target.task == "multilabel":
        return LabelEvidence([Tally.of(part, 2, bins) for part in vector.reshape(outputs, -1)])
    return NumberSums(vector.double().numpy().reshape(outputs, len(SUMS)), scale_of(target))


def is_plausible_sum(target: Target | None, vector: Tensor, outputs: int, bins: int, most: int) -> bool:
    """Whether a vector can sum up at most so many predictions."""
    if target is None:
        return is_plausible(vector, outputs, bins, most)
    if vector.shape != (evidence_size(target, outputs, bins),) or not bool(vector.isfinite().all()):
        return False
    if target.task == "multilabel":
        parts = vector.reshape(outputs, -1)
        return (
            all(is_plausible(part, 2, bins, most) for part in parts)
            and len({one_count(part, bins) for part in parts}) == 1
        )
    sums = vector.double().numpy().reshape(outputs, len(SUMS))
    n, absolute, e2, e4, y, y2, _, y4, _, e2y2 = sums.T
    slack = 1e-6 * (1 + np.abs(sums).max(initial=0.0))
    even = np.stack([absolute, e2, e4, y2, y4, e2y2])
    counts = bool((np.abs(n - n[0]) < 1e-6).all()) and 0 <= n[0] <= most + 1e-6
    return counts and bool(
        (even >= -slack).all() and (absolute**2 <= n * e2 + slack).all() and (y**2 <= n * y2 + slack).all()
    )


def one_count(vector: Tensor, bins: int) -> int:
    """How many samples a tally of two classes counts."""
    return Tally.of(vector, 2, bins).samples
