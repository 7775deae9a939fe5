"""The mean of the clients' updates (McMahan et al., Communication-Efficient Learning of Deep Networks, 2017).

w <- w + sum_k p_k (w_k - w), with p_k the client's share of the round's samples, or 1/|S| for all alike
(`weighting: uniform`). The sum runs in float64 and in a fixed order, so the result does not depend on who was first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Tensor

from fedframe.core.aggregation import RunningMean
from fedframe.core.message import Message
from fedframe.core.part import Merger, Part, Slot

if TYPE_CHECKING:
    from fedframe.core.server import Server


@dataclass(frozen=True)
class Mean(Part):
    """Weighted or uniform mean, as the run's `weighting` says."""

    name: ClassVar[str] = "mean"
    claims: ClassVar[frozenset[Slot]] = frozenset({"merge"})
    sums: ClassVar[Literal["", "weighted", "plain"]] = "weighted"
    paper: ClassVar[str] = "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data"

    def merger(self, server: Server) -> Merger:
        """A running sum: memory does not grow with the clients."""
        return MeanMerger(server.layout.trainable)


class MeanMerger:
    """Adds up the updates of the trainable weights."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.running = RunningMean(size)

    def add(self, reply: Message, weight: float) -> None:
        """Take one client's update."""
        self.running.add(reply.tensors["update"][: self.size], weight)

    def finish(self) -> Tensor:
        """The mean update."""
        return self.running.mean()
