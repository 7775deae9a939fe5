"""Statistics of a score over seeds: mean and interval, paired difference and test, correction for several tests.

Seeds are the sample: each draws its own partition, split and initial weights, and all methods get the same ones. So
methods are compared seed by seed (paired), and with few seeds the intervals are wide, as they should be.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

CONFIDENCE = 0.95
TEST = "paired t test, two-sided (scipy.stats.ttest_rel)"
FEWEST = 2  # values, for anything but the mean
NO_SPREAD = 1e-12  # relative: below it differences are equal, and their spread is rounding error


@dataclass(frozen=True)
class Estimate:
    """A score over seeds; `values` has an entry per seed, None where there is none."""

    values: tuple[float | None, ...]
    mean: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def known(self) -> list[float]:
        """The finite values."""
        return [value for value in self.values if value is not None and math.isfinite(value)]

    @property
    def count(self) -> int:
        """The number of seeds with a value."""
        return len(self.known)

    @property
    def interval(self) -> tuple[float | None, float | None, float | None]:
        """Mean, low, high."""
        return self.mean, self.low, self.high


@dataclass(frozen=True)
class Difference:
    """A method minus the baseline, over the seeds in which both have the score."""

    pairs: int
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    test: str = TEST
    remark: str = ""  # why there is no p-value, in a sentence


def estimate(values: Sequence[float | None]) -> Estimate:
    """Mean and Student's t interval: mean ± t(0.975, n - 1) s / sqrt(n)."""
    known = Estimate(tuple(values)).known
    if not known:
        return Estimate(tuple(values))
    mean = statistics.fmean(known)
    if len(known) < FEWEST:
        return Estimate(tuple(values), mean)
    half = half_width(len(known)) * statistics.stdev(known)
    return Estimate(tuple(values), mean, mean - half, mean + half)


@cache  # a page asks for it in every round of every line
def half_width(count: int) -> float:
    """Half of the t interval of a mean over `count` values whose standard deviation is 1."""
    from scipy import stats  # slow to import

    return float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)) / math.sqrt(count)


def paired(ours: Sequence[float | None], baseline: Sequence[float | None]) -> Difference:
    """The mean difference over common seeds, its t interval, and the p-value of the paired t test."""
    from scipy import stats

    both = [(a, b) for a, b in zip(ours, baseline, strict=True) if a is not None and b is not None]
    differences = [a - b for a, b in both]
    count = len(differences)
    if not differences:
        return Difference(0, remark="There is no seed in which both have this score.")
    mean = statistics.fmean(differences)
    if count < FEWEST:
        return Difference(1, mean, remark="One common seed: an interval and a p-value need two or more.")
    scale = max(max(abs(a), abs(b)) for a, b in both)
    if statistics.stdev(differences) <= NO_SPREAD * scale:
        if abs(mean) <= NO_SPREAD * scale:
            return Difference(count, 0.0, p=1.0, remark="Equal to the baseline in every seed: there is no interval.")
        remark = "The difference is the same in every seed. Without variation there is no interval and no p-value."
        return Difference(count, mean, remark=remark)
    result = stats.ttest_rel([a for a, _ in both], [b for _, b in both])
    interval = result.confidence_interval(CONFIDENCE)
    return Difference(count, mean, float(interval.low), float(interval.high), float(result.pvalue))


def against_baseline(others: Sequence[Sequence[float | None]], baseline: Sequence[float | None]) -> list[Difference]:
    """Every method's difference to the baseline in one score, the p-values also adjusted for their number."""
    raw = [paired(values, baseline) for values in others]
    adjusted = holm([each.p for each in raw])
    return [replace(each, p_holm=p) for each, p in zip(raw, adjusted, strict=True)]


def holm(values: Sequence[float | None]) -> list[float | None]:
    """p-values adjusted for being several (Holm 1979): p_(i) times (m - i + 1), never falling, at most 1.

    Missing values do not count as tests.
    """
    order = sorted((value, i) for i, value in enumerate(values) if value is not None)
    adjusted: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, (value, i) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * value))
        adjusted[i] = largest
    return adjusted
