"""Coordinate-wise trimmed mean: for every weight the largest and the smallest changes are left out of the mean.

Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018, Definition 2 and
Algorithm 1 (option II). With n updates and f = beta n:
    step_j = 1 / (n - 2 f) sum of the u_kj without the f largest and the f smallest of them
With beta = 0 it is the unweighted mean; with the largest f possible it is the coordinate-wise median.

Differs from the paper in: there clients send one gradient; here the change of their model after local training. f is
rounded up, and at most so large that something is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedframe.core import Merger, Server
from fedframe.methods.parts.robust import GatheringMerger, RobustMerge, Suspects


@dataclass(frozen=True)
class TrimmedMean(RobustMerge):
    """The mean of what is left; clients count alike."""

    name: ClassVar[str] = "trimmed_mean"
    paper: ClassVar[str] = "Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Rates, ICML 2018"

    share: Suspects = 0.2  # beta: of the clients, cut off at either end
    """Share of the clients that is cut at either end of a coordinate, rounded up."""

    def merger(self, server: Server) -> Merger:
        """Keeps every update: memory grows with the clients of a round."""

        def rule(gathered: GatheringMerger) -> Tensor:
            cut = gathered.suspects(self.share, (len(gathered.updates) - 1) // 2)
            return gathered.coordinatewise(lambda columns: columns[cut : len(columns) - cut].mean(0))  # Definition 2

        return GatheringMerger(server, rule)
