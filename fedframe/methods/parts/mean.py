"""The mean of the clients' updates (McMahan et al., Communication-Efficient Learning of Deep Networks, 2017).

w <- w + sum_k p_k (w_k - w), with p_k the client's share of the round's samples, or 1/|S| for all alike
(`weighting: uniform`). The sum runs in float64 and in a fixed order, so the result does not depend on who was first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from fedframe.core import Part, RunningMean, Server

if TYPE_CHECKING:
    from fedframe.core.job import Job


@dataclass(frozen=True)
class Mean(Part):
    """Weighted or uniform mean, as the run's `weighting` says."""

    name: ClassVar[str] = "mean"
    paper: ClassVar[str] = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data"

    def server_step(self, server: Server, updates: RunningMean) -> Tensor:
        """The mean update."""
        return updates.into_mean()

    def furthest(self, longest: Mapping[str, float], round: int, job: Job) -> Mapping[str, float] | None:
        """No mean is longer than the longest update."""
        return {"model": longest["update"]}
