"""How far the shared model may move between two requests, as a node sees it: many times its own longest update.

A node does not know the others' updates, so it cannot tell that a model is what they make of the last one. But parts
say how far the server can go when no update is longer than a given length (`Part.furthest`): the mean no farther,
server momentum 1 / (1 - momentum) times as far, Adam by its learning rate for every weight. With the length of this
node's own longest update, and `step_bound` for how much longer others' may be, that bounds an honest step. A step
within the norm of the agreed initial model is let pass as well: what a node learns from its own data can be next to
nothing.

What no part moves in rounds (frozen layers, class vectors) stays as agreed, and what is broadcast and bounded begins as
agreed: with a broadcast control variate an organiser could move the model at the node itself.

A node that was in no round yet trains for itself from the initial model, to know how long an update is.

Not bounded: averaged buffers (the statistics of one sample say nothing of others'), what the server makes after the
last round, and what `unbounded` names.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from fedframe.core.job import Job
from fedframe.core.layout import named_tensors
from fedframe.core.message import STAGE, Message
from fedframe.core.method import Method
from fedframe.core.part import ON_SERVER, Part, overrides
from fedframe.core.reply_limits import norm
from fedframe.core.server_view import ServerView
from fedframe.errors import ProtocolError

if TYPE_CHECKING:
    from fedframe.core.server import Server

FIXED = "fixed/"
GROWTH = 2.0  # how much longer than all before an own update may count: a crafted model must not buy the next one room


class StepBound:
    """The rules of one run at one node, and what it was sent last."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.times = job.settings.step_bound
        self.round, self.last = 1, dict[str, Tensor]()  # what is bounded, as it came last; empty after a restart
        self._first: dict[str, Tensor] | None = None

    @property
    def first(self) -> dict[str, Tensor]:
        """What an honest organiser begins with, by the names that a request has."""
        if self._first is None:
            view = cast("Server", ServerView(self.job, lambda text: None))
            kept = {name: state for part in self.job.method.parts for name, state in part.server_state(view).items()}
            found = {str(name): state.tensor for name, state in kept.items() if state.broadcast}
            tensors = named_tensors(self.job.template)
            found |= {f"{FIXED}{name}": tensor.detach() for name, tensor in tensors.items()}
            self._first = {name: tensor.cpu() for name, tensor in (found | {"model": view.model}).items()}
        return self._first

    @property
    def beginning(self) -> dict[str, Tensor]:
        """What the first request brings."""
        return {name: tensor for name, tensor in self.first.items() if not name.startswith(FIXED)}

    def wants(self, request: Message) -> bool:
        """Whether anything of a request is bounded."""
        bounded = self.times and self.job.settings.rounds and request.round >= 1 and "model" in request.tensors
        return bool(bounded and self.covers(request) and not unbounded(self.job.method, self.job))

    def check(self, request: Message, longest: Mapping[str, float]) -> None:
        """Refuse a request whose tensors have moved too far; `longest` are the norms of this node's own replies."""
        parts = merging_parts(self.job.method)
        reach = furthest(parts, _Lengths(longest), request.round, self.job) if longest else {}
        for name, tensor in request.tensors.items():
            if name in self.first and (tensor.shape != self.first[name].shape or not tensor.is_floating_point()):
                raise ProtocolError(
                    f"The request's {name} is of {tensor.dtype} {tuple(tensor.shape)}; that fits nothing."
                )
            declared = name in reach or (not longest and name in furthest(parts, UNKNOWN, 1, self.job))
            if request.round == 1 and name in self.first and declared and not name.startswith(FIXED):
                self.refuse_other(name, tensor, f"{name} is not what it begins with")
            elif name.startswith(FIXED) and not declared:
                self.refuse_other(name, tensor, f"{name.removeprefix(FIXED)} is not moved in rounds by this method")
            elif name in reach and request.round > 1:
                self.check_step(name, tensor, request.round, reach[name])

    def covers(self, request: Message) -> bool:
        """Whether nothing but rounds has made this request's model."""
        rounds, method = self.job.settings.rounds, self.job.method
        if request.round <= rounds:
            return True
        if method.parts_with("after_rounds"):
            return False
        staged = method.optional_slot("server_stage") is not None
        return not staged or (request.kind == "statistics" and not request.numbers.get(STAGE))

    def refuse_other(self, name: str, tensor: Tensor, said: str) -> None:
        """Refuse another tensor than the one that was agreed."""
        if not torch.equal(tensor.cpu().double(), self.first[name].double()):
            raise ProtocolError(f"The request's {said}; this node takes the agreed one.")

    def check_step(self, name: str, tensor: Tensor, round: int, reach: float) -> None:
        """Refuse a tensor that is too far from where it was last, or where it began."""
        began = self.round if name in self.last else 1
        before = self.last[name] if name in self.last else self.first[name]
        moved = norm(self.bounded(name, tensor).double() - self.bounded(name, before).double())
        rounds, floor = max(1, round - began), norm(self.bounded("model", self.first["model"]))
        if moved > rounds * max(self.times * reach, floor):
            what = "shared model" if name == "model" else name.removeprefix(FIXED)
            raise ProtocolError(
                f"The {what} has moved by {moved:.3g} since round {began}; by this node's own updates {reach:.3g} a "
                f"round could be, and step_bound = {self.times:g} times as much is agreed: it is refused. If that is "
                "how the method learns, agree on a larger step_bound (0: none)."
            )

    def bounded(self, name: str, tensor: Tensor) -> Tensor:
        """The part of a tensor that is bounded: of the model the weights, without averaged buffers."""
        return tensor[: self.job.roles.layout.trainable] if name == "model" else tensor

    def keep(self, request: Message) -> None:
        """Remember what was let pass."""
        if self.wants(request) and request.round >= self.round:
            self.round = request.round
            self.last = {name: tensor for name, tensor in request.tensors.items() if name in self.first}

    def lengths(self, reply: Message, before: Mapping[str, float]) -> dict[str, float]:
        """The norms of a reply's tensors where they are the longest yet."""
        found = {}
        for name, tensor in reply.tensors.items():
            size = norm(self.bounded("model", tensor) if name == "update" else tensor)
            size = min(size, GROWTH * before[name]) if before.get(name) else size
            if math.isfinite(size) and size > before.get(name, -1.0):
                found[name] = size
        return found


class _Lengths(dict[str, float]):
    """Norms of replies' tensors; where none is known, there is no bound."""

    def __missing__(self, name: str) -> float:
        return math.inf


UNKNOWN = _Lengths()  # only to learn of which tensors a part says something


def merging_parts(method: Method) -> list[Part]:
    """The parts that act on the server in rounds."""
    return [part for part in method.parts if any(overrides(type(part), hook) for hook in ON_SERVER)]


def unbounded(method: Method, job: Job) -> list[str]:
    """Names of the parts that do not say how far they can move what clients receive."""
    return [part.name for part in merging_parts(method) if part.furthest(UNKNOWN, 1, job) is None]


def furthest(parts: Collection[Part], longest: Mapping[str, float], round: int, job: Job) -> dict[str, float]:
    """How far each tensor of a request can move in a round, by all parts together."""
    settings = job.settings
    found: dict[str, float] = {}
    for part in parts:
        for name, reach in (part.furthest(longest, round, job) or {}).items():
            found[name] = found.get(name, 0.0) + reach
    if "model" in found and settings.privacy_clip is not None and settings.privacy_at == "server":
        found["model"] += settings.privacy_clip * settings.privacy_noise * math.sqrt(job.roles.layout.trainable)
    return found
