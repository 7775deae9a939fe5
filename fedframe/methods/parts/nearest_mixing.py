"""Nearest-neighbour mixing (NNM): before a robust merge every update is averaged with its nearest neighbours.

Allouah et al., Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity, AISTATS 2023. With n updates, f
of which may be bad:
    u_k <- the mean of the n - f updates that are closest to u_k, itself among them
Where clients' data differ, honest updates lie far apart and a robust rule throws some of them away; mixing draws them
together first. It changes updates before they are merged and goes with any merge: trimmed_mean+nnm, krum+nnm.

Differs from the paper in: there clients send momentum of their gradients; here the change of their model after local
training. f is rounded up, and at most so large that most updates are left. Weights in the mean stay the clients' own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedframe.core import Part, Server, WeightedReply
from fedframe.methods.parts.nash import blocks
from fedframe.methods.parts.robust import Suspects, squared_distances, suspected

if TYPE_CHECKING:
    from fedframe.core.job import Job


@dataclass(frozen=True)
class NearestMixing(Part):
    """Averages every update with its neighbours."""

    name: ClassVar[str] = "nnm"
    rank: ClassVar[int] = 70  # after updates are clipped
    paper: ClassVar[str] = "Allouah et al., Fixing by Mixing: Optimal Byzantine ML under Heterogeneity, AISTATS 2023"

    share: Suspects = 0.2  # f / n: of the clients that may be bad
    """Share of the clients that may be malicious, f / n."""

    def before_merge(self, server: Server, replies: Sequence[WeightedReply]) -> Sequence[WeightedReply]:
        """Mix the updates of a round."""
        updates = [reply.tensors["update"].float() for reply, _ in replies]
        distances = squared_distances([update[: server.layout.trainable] for update in updates])
        keep = len(updates) - suspected(len(updates), self.share, (len(updates) - 1) // 2)
        mixed = mixtures(updates, neighbourhoods(distances, keep))
        return [
            (replace(reply, tensors={**reply.tensors, "update": update}), weight)
            for (reply, weight), update in zip(replies, mixed, strict=True)
        ]

    def furthest(self, longest: Mapping[str, float], round: int, job: Job) -> Mapping[str, float] | None:
        """Means of updates are no longer than they."""
        return {}


def neighbourhoods(distances: Tensor, keep: int) -> Tensor:
    """Row k holds 1 / keep for the updates closest to the k-th, itself among them; of equals the larger client's."""
    nearest = torch.argsort(distances.clone().fill_diagonal_(-1.0), dim=1, stable=True)[:, :keep]
    return torch.zeros_like(distances).scatter_(1, nearest, 1 / keep)


def mixtures(updates: list[Tensor], shares: Tensor) -> list[Tensor]:
    """The updates mixed with the shares of every row, summed in float64."""
    mixed = torch.empty(len(shares), len(updates[0]))
    columns = blocks(updates)
    for start in columns:
        block = torch.stack([update[start : start + columns.step] for update in updates]).double()
        mixed[:, start : start + columns.step] = (shares @ block).float()
    return list(mixed)
