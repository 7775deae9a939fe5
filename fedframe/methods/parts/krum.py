"""Krum: the one update that lies closest to its neighbours; multi-Krum: the mean of several of them.

Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017. With n updates,
f of which may be bad, and i -> j for the n - f - 2 updates u_j that are closest to u_i:
    s(i) = sum_{i -> j} |u_i - u_j|^2
Krum takes the update with the smallest score; multi-Krum the mean of the m with the smallest scores. m = 1 is Krum,
m = n the unweighted mean.

Differs from the paper in: there clients send one gradient; here the change of their model after local training. Krum
asks for n >= 2 f + 3: with fewer updates f is as large as that allows. m is n - f by default. Of equal scores the
larger client's counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedframe.core import Merger, Server
from fedframe.methods.parts.nash import combination
from fedframe.methods.parts.robust import GatheringMerger, RobustMerge, Suspects, squared_distances

PAPER = "Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017"


@dataclass(frozen=True)
class Krum(RobustMerge):
    """The update with the smallest score."""

    name: ClassVar[str] = "krum"
    paper: ClassVar[str] = PAPER

    share: Suspects = 0.2  # f / n: of the clients that may be bad
    """Share of the clients that may be malicious, rounded up."""

    def merger(self, server: Server) -> Merger:
        """Keeps every update: memory grows with the clients of a round."""
        return GatheringMerger(server, lambda gathered: best(gathered, self.share, 1))


@dataclass(frozen=True)
class MultiKrum(RobustMerge):
    """The mean of the updates with the smallest scores."""

    name: ClassVar[str] = "multi_krum"
    paper: ClassVar[str] = PAPER

    share: Suspects = 0.2  # f / n: of the clients that may be bad
    """Share of the clients that may be malicious, rounded up."""
    keep: Annotated[int, Field(ge=1)] | None = None  # m; by default n - f
    """How many updates are averaged; empty means all but the malicious ones, n - f."""

    def merger(self, server: Server) -> Merger:
        """Keeps every update: memory grows with the clients of a round."""
        return GatheringMerger(server, lambda gathered: best(gathered, self.share, self.keep))


def best(gathered: GatheringMerger, share: float, keep: int | None) -> Tensor:
    """The mean of the `keep` updates with the smallest scores."""
    count = len(gathered.updates)
    bad = gathered.suspects(share, (count - 3) // 2)
    order = torch.argsort(scores(squared_distances(gathered.trainable()), bad), stable=True)
    chosen = order[: min(keep or count - bad, count)]
    shares = torch.zeros(count, dtype=torch.float64)
    shares[chosen] = 1 / len(chosen)
    return combination(gathered.updates, shares)


def scores(distances: Tensor, bad: int) -> Tensor:
    """s(i) from all squared distances; with fewer than four updates the nearest neighbour counts."""
    count = len(distances)
    others = distances.clone().fill_diagonal_(float("inf")).sort(1).values
    near = max(1, count - bad - 2)
    return others[:, : min(near, count - 1)].sum(1)
