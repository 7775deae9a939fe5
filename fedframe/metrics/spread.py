"""How differently a method serves its clients: the spread of a score over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, pstdev


def spread(accuracies: Sequence[float]) -> dict[str, float] | None:
    """Standard deviation over the clients (of all of them, not of a sample), mean of the worst tenth, worst and best.

    The worst tenth is a tenth of the clients, rounded up; None if there are no clients.
    """
    if not accuracies:
        return None
    worst = sorted(accuracies)[: math.ceil(len(accuracies) / 10)]
    return {
        "std": pstdev(accuracies),
        "worst_tenth": fmean(worst),
        "min": min(accuracies),
        "max": max(accuracies),
    }
