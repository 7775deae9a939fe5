"""Mean and 95 % confidence interval over seeds, as `fedframe compare` has it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache

Interval = tuple[float | None, float | None, float | None]


def mean_and_interval(values: Sequence[float]) -> Interval:
    """The mean and the ends of its interval; None where there are too few values to say."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return None, None, None
    mean = statistics.fmean(known)
    if len(known) < 2:
        return mean, None, None
    half = unit_width(len(known)) * statistics.stdev(known)
    return mean, mean - half, mean + half


@cache  # a page asks for it in every round
def unit_width(count: int) -> float:
    """Half of the interval of so many values whose standard deviation is 1."""
    from fedframe.comparing.statistics import half_width

    return half_width(1.0, count)
