"""What robust merge rules share: all updates of a round side by side, and how many of them to suspect.

A rule sees the clients' updates alike, whatever number of samples a client claims. Where a reply stands for several
clients (`bucketing`), each of the clients to suspect may have spoilt another reply: their number stays, among fewer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedframe.core import Message, Method, ModelSize, Part, Server
from fedframe.errors import SettingError
from fedframe.methods.parts.nash import blocks, gram_matrix

if TYPE_CHECKING:
    from fedframe.core.job import Job

Suspects = Annotated[float, Field(ge=0, lt=0.5)]  # the share of clients that may be up to no good


@dataclass(frozen=True)
class RobustMerge(Part):
    """The base of robust merge rules."""

    def check_method(self, method: Method) -> None:
        """Refuse parts that have clients send more than updates: those sums would be as open to poison as the mean."""
        any_size = ModelSize(classes=2, dim=2, trainable=2)  # whether there are uploads does not depend on it
        for part in method.parts:
            if any(upload.when == "round" for upload in part.uploads(any_size).values()):
                raise SettingError(
                    f"{method.name!r} cannot be combined: {self.name!r} guards updates, and what {part.name!r} has "
                    "clients send beside them would be summed unguarded; leave one of them out."
                )

    def furthest(self, longest: Mapping[str, float], round: int, job: Job) -> Mapping[str, float] | None:
        """No rule leaves what its updates span by much: a median of each weight is at most sqrt(2) times as long."""
        return {"model": 2 * longest["update"]}


class GatheringMerger:
    """Keeps the updates of a round for a rule that needs all of them at once."""

    def __init__(self, server: Server, rule: Callable[[GatheringMerger], Tensor]) -> None:
        self.server, self.rule = server, rule
        self.updates: list[Tensor] = []  # of trainable weights and buffers
        self.weights: list[float] = []
        self.clients = 0

    def add(self, reply: Message, weight: float) -> None:
        """Keep one update."""
        self.updates.append(reply.tensors["update"].float())
        self.weights.append(weight)
        self.clients += int(reply.numbers.get("clients", 1))

    def finish(self) -> Tensor:
        """The rule's step, of trainable weights and buffers."""
        return self.rule(self)

    def suspects(self, share: float, most: int) -> int:
        """How many updates may be bad: f, at most what the rule can bear."""
        return suspected(self.clients, share, most)

    def trainable(self) -> list[Tensor]:
        """The updates of the trainable weights: buffers are on another scale and have no part in distances."""
        return [update[: self.server.layout.trainable] for update in self.updates]

    def coordinatewise(self, rule: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply a rule to sorted columns: (updates, some coordinates) in float64, each column in rising order."""
        columns = blocks(self.updates)
        pieces = [
            rule(torch.stack([update[start : start + columns.step] for update in self.updates]).double().sort(0).values)
            for start in columns
        ]
        return torch.cat(pieces)


def suspected(clients: int, share: float, most: int) -> int:
    """This share of the clients, rounded up and at most `most`."""
    return max(0, min(math.ceil(share * clients - 1e-9), most))


def squared_distances(updates: list[Tensor]) -> Tensor:
    """All squared distances between updates, in float64."""
    gram = gram_matrix(updates)
    lengths = gram.diagonal()
    found = (lengths[:, None] + lengths[None, :] - 2 * gram).clamp_min(0)
    return found.fill_diagonal_(0)
