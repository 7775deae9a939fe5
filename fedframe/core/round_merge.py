"""The replies of one round on their way into the model: bounded, weighed, and added up in the order of the clients.

An update is added as soon as it is known to be within bounds, and then forgotten. Only where a part changes updates
before they are merged, or has a merger of its own, are all of them kept until the round is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from fedframe.core.aggregation import RunningMean
from fedframe.core.hook_errors import wrong_return
from fedframe.core.message import ALL, DIVERGED, Message
from fedframe.core.part import WeightedReply
from fedframe.core.privacy import clip_update

if TYPE_CHECKING:
    from fedframe.core.server import Server


class RoundMerge:
    """What a round has taken of its replies so far."""

    def __init__(self, server: Server, clients: Sequence[int]) -> None:
        self.server, self.limits = server, server.limits
        self.merger = server.merger()
        self.prepares = bool(server.job.method.parts_with("before_merge"))
        self.keeps = self.prepares or not server.sums_updates
        self.buffers = RunningMean(server.layout.size - server.layout.trainable)
        self._loss, self._loss_weight = 0.0, 0.0  # clients whose every figure would need noise send none
        self.clients = 0  # whose updates are merged
        self.diverged = 0  # of them, those that count as no change: sums say how many, and not who
        self._summed = False  # whether a reply stands for several clients
        self._waiting: list[WeightedReply] = []  # for parts that change updates before they are merged
        self.limits.begin(clients)

    def add(self, reply: Message) -> None:
        """Take a reply that is valid; its tensors are lent."""
        self._summed = self._summed or reply.unit == ALL
        for each in self.limits.admit(reply):
            self._take(each)

    def close(self) -> None:
        """No more replies come: take those that were held back, and say what exceeded the bounds."""
        for each in self.limits.close():
            self._take(each)
        self.server.problems += self.limits.dropped
        if self.limits.bounded:
            self.server.figures["samples_bounded"] = len(self.limits.bounded)

    @property
    def spoilt(self) -> bool:
        """Whether a sum over clients was dropped: one member can do that, so it must not end the run."""
        return self._summed and bool(self.limits.dropped)

    @property
    def mean_loss(self) -> float:
        """The mean loss of the clients' training; NaN where none was sent."""
        return self._loss / self._loss_weight if self._loss_weight else float("nan")

    def step(self) -> tuple[Tensor, Tensor]:
        """The step of the trainable weights and that of the buffers."""
        for reply, weight in prepared(self.server, self._waiting):
            self._merge(reply, weight)
        return self.server.checked_step(self.merger.finish(), self.buffers.into_mean())

    def _take(self, reply: Message) -> None:
        server = self.server
        represented, reply = server.engine.represented_clients(reply), clip_update(reply, server.job.settings)
        self.clients += len(represented)
        self.diverged += int(reply.numbers[DIVERGED]) if reply.unit == ALL else 0
        server.engine.mark_merged(represented, reply.round)
        weight = server.weight(reply)
        kept = with_own_tensors(reply) if self.keeps else reply
        if self.prepares:
            self._waiting.append((kept, weight))
        else:
            self._merge(kept, weight)
        if "loss" in reply.numbers:
            samples = self.limits.samples(reply)
            self._loss += float(np.float32(reply.numbers["loss"])) * samples
            self._loss_weight += samples
        server.uploads.add(reply, weight)
        for observer in server.observers:
            observer.on_reply(reply)

    def _merge(self, reply: Message, weight: float) -> None:
        self.merger.add(reply, weight)
        self.buffers.add(reply.tensors["update"][self.server.layout.trainable :], weight)


def prepared(server: Server, replies: Sequence[WeightedReply]) -> Sequence[WeightedReply]:
    """The round's replies as parts want them merged."""
    for part in server.job.method.parts_with("before_merge") if replies else ():
        replies = part.before_merge(server, replies)
        if not replies or not all(isinstance(reply, Message) for reply, _ in replies):
            raise wrong_return(part, "before_merge", replies, "a list of replies with their weights")
    return replies


def with_own_tensors(reply: Message) -> Message:
    """The reply with tensors of its own, for those who keep them: an engine reuses the memory of what it lends."""
    return replace(reply, tensors={name: tensor.clone() for name, tensor in reply.tensors.items()})
