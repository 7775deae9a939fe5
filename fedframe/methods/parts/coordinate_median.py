"""Coordinate-wise median: every weight moves by the median of the clients' changes of it.

Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018, Definition 1 and
Algorithm 1 (option I):
    step_j = med{ u_kj : k in S }             (of an even number: the mean of the two in the middle)
As long as more than half of the clients are honest, every coordinate of the step lies between two honest ones.

Differs from the paper in: there clients send one gradient; here the change of their model after local training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedframe.core import Merger, Server
from fedframe.methods.parts.robust import GatheringMerger, RobustMerge


@dataclass(frozen=True)
class CoordinateMedian(RobustMerge):
    """The median of every coordinate; clients count alike."""

    name: ClassVar[str] = "median"
    paper: ClassVar[str] = "Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Rates, ICML 2018"

    def merger(self, server: Server) -> Merger:
        """Keeps every update: memory grows with the clients of a round."""
        return GatheringMerger(server, lambda gathered: gathered.coordinatewise(median))


def median(columns: Tensor) -> Tensor:
    """The median of sorted columns."""
    count = len(columns)
    return (columns[(count - 1) // 2] + columns[count // 2]) / 2  # Definition 1
