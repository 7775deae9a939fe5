"""A tally of predictions: all that measures need, as one vector that can be added up over clients.

It holds counts in fixed bins, so that pooled measures need no single prediction, also under secure aggregation. Nets
are often sure, and bins of equal width in a probability p would put most of their scores into the first and the last
one; those of a net that has hardly learned all lie around 1/C. So bins are equally wide in asinh(20 z), where
z = log p - log(1 - p) + log(C - 1) are the log-odds against a guess: about linear where a net is no better than that,
logarithmic beyond. AUROC is then off by at most half of the share of pairs that share a bin (`bins_error`);
sensitivity and specificity are those of thresholds between bins.

Layout: scores (classes, or 1 of two; own and other samples; bins), confusion matrix, sums of squared errors and of
their squares, calibration (count, confidence, right; 15 bins).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedframe.core.measures import ClassScores, Counts, Floats, Predictions

MOST_LOG_ODDS = 104.0  # below minus that, float32 cannot tell a probability from 0
BEND = 0.05  # log-odds against a guess from which on bins grow
SURE_BINS = 15  # of calibration


def tally_size(classes: int, bins: int) -> int:
    """How many numbers a tally has."""
    return 2 * bins * kept_classes(classes) + classes * classes + 2 + 3 * SURE_BINS


def kept_classes(classes: int) -> int:
    """How many classes have scores of their own: of two, those of the first follow from the second's."""
    return 1 if classes == 2 else classes


def bin_of(probabilities: Floats, bins: int, classes: int = 2) -> Counts:
    """The bin of each probability of a class among so many."""
    guess = np.log(classes - 1)  # minus the log-odds of 1/C
    most = MOST_LOG_ODDS + guess
    with np.errstate(divide="ignore"):
        log_odds = np.log(probabilities) - np.log1p(-probabilities) + guess
    bent = np.arcsinh(np.clip(log_odds, -most, most) / BEND) / np.arcsinh(most / BEND)
    place = np.floor((bent + 1) / 2 * bins)
    found: Counts = np.minimum(place, bins - 1).astype(np.int64)
    return found


def make_tally(predictions: Predictions, bins: int) -> Tensor:
    """The tally of predictions, in float64."""
    p, labels, C = np.clip(predictions.probabilities, 0.0, 1.0), predictions.labels, predictions.classes
    columns = range(1, 2) if C == 2 else range(C)
    scores = np.zeros((len(columns), 2, bins))
    for row, c in enumerate(columns):
        place = bin_of(p[:, c], bins, C)
        for kind, chosen in enumerate((labels == c, labels != c)):
            scores[row, kind] = np.bincount(place[chosen], minlength=bins)
    sure = p[np.arange(len(labels)), predictions.predicted]
    right = (predictions.predicted == labels).astype(np.float64)
    place = np.clip(np.ceil(sure * SURE_BINS).astype(np.int64) - 1, 0, SURE_BINS - 1)
    calibration = [np.bincount(place, weights, SURE_BINS) for weights in (None, sure, right)]
    pieces = [scores.ravel(), predictions.confusion.ravel(), np.array(predictions.brier_sums), *calibration]
    return torch.from_numpy(np.concatenate([piece.astype(np.float64) for piece in pieces]))


@dataclass(frozen=True)
class Tally:
    """A tally, or the sum of several, to compute measures from."""

    vector: Floats
    classes: int
    bins: int

    @classmethod
    def of(cls, vector: Tensor, classes: int, bins: int) -> Tally:
        """From the vector that was sent; sums of masked vectors are rounded to counts again."""
        return cls(vector.double().numpy(), classes, bins)

    @property
    def samples(self) -> int:
        """How many predictions it counts."""
        return int(self.confusion.sum())

    @property
    def confusion(self) -> Counts:
        """Samples by true (row) and predicted class."""
        start = 2 * self.bins * kept_classes(self.classes)
        cells = self.vector[start : start + self.classes**2]
        return np.rint(cells).astype(np.int64).reshape(self.classes, self.classes)

    def scores(self, c: int) -> ClassScores:
        """The scores of a class, a count per bin."""
        row = 0 if self.classes == 2 else c
        both = np.rint(self.vector[2 * self.bins * row : 2 * self.bins * (row + 1)]).astype(np.int64)
        own, others = both[: self.bins], both[self.bins :]
        return ClassScores(others[::-1], own[::-1]) if self.classes == 2 and c == 0 else ClassScores(own, others)

    @property
    def brier_sums(self) -> tuple[float, float]:
        """Squared errors of the probabilities, summed over samples; and their squares."""
        start = 2 * self.bins * kept_classes(self.classes) + self.classes**2
        return float(self.vector[start]), float(self.vector[start + 1])

    @property
    def calibration(self) -> Floats:
        """Samples, summed confidence and right predictions by confidence: (3, 15)."""
        return self.vector[-3 * SURE_BINS :].reshape(3, SURE_BINS)


def calibration_error(sums: Floats) -> float:
    """The expected calibration error (Guo et al., ICML 2017, Eq. 3) of samples, confidence and hits by bin."""
    count, confidence, right = sums
    return float(np.abs(right - confidence).sum() / count.sum())


def is_plausible(vector: Tensor, classes: int, bins: int, most: int) -> bool:
    """Whether a vector can be the tally of at most so many samples."""
    if vector.shape != (tally_size(classes, bins),) or not bool((vector >= 0).all()):
        return False
    tally = Tally.of(vector, classes, bins)
    count = tally.samples
    per_class = tally.vector[: 2 * bins * kept_classes(classes)].reshape(-1, 2 * bins).sum(1)
    return count <= most and bool((np.abs(per_class - count) < 0.5).all()) and tally.brier_sums[0] <= 2 * count + 1e-6
