"""How much a single reply can do to a round: the samples that it counts for are bounded, and an update out of all
proportion is dropped. Else one member that claims 10^9 samples, or sends finite numbers of 1e30, would own the model.

Samples: a client counts for at most `samples_bound` times the median of the round's clients. How many samples each
has is known before the round, so the bound is too.

Updates: one whose norm is more than `update_bound` times the median of the round is dropped. Replies are added up as
they come and none is kept, so that median is known only when it is too late. Norms change slowly from round to round
beside a factor of 100, so the median of the round before says which updates are in doubt; it is part of the checkpoint.
The others are added at once, in their order: where nothing is in doubt, nothing changes by a bit. What is in doubt is
held back, up to `WINDOW` updates, until all norms of the round are known. Where there is no median yet (the first
round, or all norms were zero), the first `WINDOW` replies are held back until there is a median of theirs. The median
of two is their mean: where two clients disagree in the first round, nobody can tell which of them is out of proportion.

Over a network there is a second bound, as nodes refuse a model that has moved too far (`step_bound`): in a small
federation one update within a hundred medians is more than that, and whoever sent it would be the only one to go on.
So one that by its weight alone moves the mean half as far as nodes let pass is dropped, too.

With secure aggregation the server sees one sum, which it can only compare with the last, and the first one with the
initial model: if it is out of proportion, the round is given up, and the run goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, median_low

import numpy as np
import torch
from torch import Tensor

from fedframe.core.job import Job
from fedframe.core.kept_updates import KeptUpdates
from fedframe.core.layout import named_tensors
from fedframe.core.message import Message

WINDOW = 16  # replies that are held back where there is no median yet; large ones wait in a file
UPLOAD_SLACK = 100.0  # uploads may be sums over samples, of which clients have more or fewer: their bound is wider
STEP_SHARE = 0.5  # of what nodes let pass: so far may a single update move the mean
LOOSE = 0.15  # of `update_bound`, where that is larger: its updates are known to be of all lengths
PIECE = 2**16  # numbers whose squares are summed in float32; the sums of the pieces are added in float64


@dataclass(frozen=True)
class HeldReply:
    """A reply that is held back, without its tensors: those are with others of their kind."""

    reply: Message
    places: dict[str, tuple[int, torch.Size]]  # by name: which of the kept vectors it is, and its shape

    @classmethod
    def of(cls, reply: Message, kept: KeptUpdates) -> HeldReply:
        """Keep a reply whose tensors are lent."""
        places: dict[str, tuple[int, torch.Size]] = {}
        rest: dict[str, Tensor] = {}
        for name, tensor in reply.tensors.items():
            if tensor.dtype == torch.float32:
                places[name] = len(kept.updates), tensor.shape
                kept.add(tensor.reshape(-1).clone())
            else:
                rest[name] = tensor.clone()
        return cls(replace(reply, tensors=rest), places)

    def load(self, kept: KeptUpdates) -> Message:
        """The whole reply."""
        found = {name: kept.updates[place][:].view(shape) for name, (place, shape) in self.places.items()}
        return replace(self.reply, tensors={**self.reply.tensors, **found})


class ReplyLimits:
    """Bounds on single replies, round by round."""

    def __init__(self, job: Job, note: Callable[[str], None]) -> None:
        settings = job.settings
        self.job, self.note = job, note
        # Where the server clips updates itself none is long, and who is dropped would tell of the others' updates.
        clips = settings.privacy_clip is not None and settings.privacy_at == "server"
        self.bound = 0.0 if clips else settings.update_bound
        self.usual: dict[str, float] = {}  # the median norm of each tensor of the replies in the round before
        self.dropped: list[str] = []  # why replies of this round were
        self.bounded: set[int] = set()  # clients that count for fewer samples than they claim, in this round
        self._told: set[int] = set()
        self._seen: list[dict[str, float]] = []  # the norms of this round's replies, by the tensors' names
        self._merged: list[dict[str, float]] = []  # of those that are merged
        self._held: list[tuple[HeldReply, dict[str, float]]] = []
        self._kept = KeptUpdates(job.folder)  # the tensors of what is held: in a file, where they are large
        self._most = float("inf")
        self._shares: dict[int, float] = {}  # by client: of the weights of the round
        self._moves: dict[int, float] = {}  # by client: how far it alone moves the mean, without averaged buffers
        self._trainable = job.roles.layout.trainable
        self._floor = norm(job.roles.layout.flatten(named_tensors(job.template))[: self._trainable])
        self._step = max(STEP_SHARE * settings.step_bound, LOOSE * self.bound) if settings.step_bound else math.inf

    # -- samples -------------------------------------------------------------------------------------------------------
    def begin(self, clients: Sequence[int]) -> None:
        """A round begins with these clients."""
        self.dropped, self.bounded = [], set()
        self._seen, self._merged, self._held, self._kept = [], [], [], KeptUpdates(self.job.folder)
        sizes = self.job.federation.train.sizes()[list(clients)]
        self._most = most_samples(sizes, self.job.settings.samples_bound)
        weights = (
            sizes.double().clamp(max=self._most) if self.job.settings.weighting == "samples" else sizes * 0.0 + 1.0
        )
        self._moves = {}
        self._shares = dict(zip(clients, (weights / weights.sum().clamp_min(1.0)).tolist(), strict=True))

    def samples(self, reply: Message) -> float:
        """The samples that a reply counts for; with secure aggregation, a sum's are those of all its clients."""
        claimed = float(reply.numbers["samples"])
        if claimed <= self._most or self.job.settings.secure:
            return claimed
        self.bounded.add(reply.unit)
        if reply.unit not in self._told:
            self._told.add(reply.unit)
            bound = self.job.settings.samples_bound
            self.note(
                f"Round {reply.round}: client {self.job.federation.names[reply.unit]} says that it has {claimed:,.0f} "
                f"samples and counts for {self._most:,.0f}: samples_bound = {bound:g} times the median of the round."
            )
        return self._most

    def samples_of_all(self) -> float:
        """The samples of all clients together, each within the bound."""
        sizes = self.job.federation.train.sizes()
        return float(sizes.double().clamp_max(most_samples(sizes, self.job.settings.samples_bound)).sum())

    # -- updates -------------------------------------------------------------------------------------------------------
    def admit(self, reply: Message) -> Iterator[Message]:
        """Take a reply that is valid; gives those that can now be merged, in the order in which they came."""
        if not self.bound:
            yield reply
            return
        norms = {name: norm(tensor) for name, tensor in reply.tensors.items()}
        self._seen.append(norms)
        if reply.unit in self._shares and "update" in reply.tensors:
            update = reply.tensors["update"]
            size = norm(update[: self._trainable]) if len(update) > self._trainable else norms["update"]
            self._moves[reply.unit] = self._shares[reply.unit] * size
        if reply.unit < 0 and not self.usual.get("update") and self.job.settings.privacy_clip is None:
            first = self.job.roles.layout.flatten(named_tensors(self.job.template))
            self.usual = {**self.usual, "update": max(1.0, norm(first))}  # else one member owns the first sum, and all
        known = bool(self.usual.get("update"))
        if known and self._exceeded(reply.unit, norms) is None:
            self._merged.append(norms)
            yield reply
        elif known and (reply.unit < 0 or len(self._held) == WINDOW):  # there is nothing, or no room, to compare with
            if self._fits(reply, norms):
                yield reply
        else:
            self._held.append((HeldReply.of(reply, self._kept), norms))
            if not known and len(self._held) == WINDOW:
                yield from self._release(median)

    def close(self) -> Iterator[Message]:
        """No more replies come: those that are still held back and can be merged."""
        # Of two norms the smaller, where history says that the larger is in doubt.
        yield from self._release(median_low if self.usual.get("update") else median)
        self.usual |= medians(self._merged, median)  # as if those that were dropped had not been there

    def _release(self, middle: Callable[[Iterable[float]], float]) -> Iterator[Message]:
        held, self._held, kept = self._held, [], self._kept
        self._kept = KeptUpdates(self.job.folder)
        if held:
            usual = medians(self._seen, middle)
            self.usual = {name: max(value, self.usual.get(name, 0.0)) for name, value in usual.items()}
        for each, norms in held:
            if self._fits(each.reply, norms):
                yield each.load(kept)

    def _exceeded(self, unit: int, norms: Mapping[str, float]) -> str | None:
        """The tensor of a reply that is out of proportion, if any is."""
        far = self._moves.get(unit, 0.0)
        if self.usual.get("update") and far > max(self._step * self.usual["update"], STEP_SHARE * self._floor):
            return "update"
        for name, size in norms.items():
            bound = self.bound if name == "update" else self.bound * UPLOAD_SLACK
            if self.usual.get(name) and size > bound * self.usual[name]:
                return name
        return None

    def _fits(self, reply: Message, norms: dict[str, float]) -> bool:
        """Whether a reply is within bounds; if not, it says so."""
        name = self._exceeded(reply.unit, norms)
        if name is None:
            self._merged.append(norms)
            return True
        settings = self.job.settings
        whose = "the clients' sum" if reply.unit < 0 else f"client {self.job.federation.names[reply.unit]}"
        self.dropped.append(f"{name} is out of proportion")
        self.note(
            f"Round {reply.round}: the reply of {whose} was dropped: the norm of its {name} is {norms[name]:.3g}, and "
            f"{self.usual[name]:.3g} is usual: far too large (update_bound = {self.bound:g}, step_bound = "
            f"{settings.step_bound:g})."
        )
        return False

    # -- what must not be lost -----------------------------------------------------------------------------------------
    def state(self) -> dict[str, Tensor]:
        """The usual norms, by the names of the tensors."""
        return {name: torch.tensor([value], dtype=torch.float64) for name, value in self.usual.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        self.usual = {name: float(tensor) for name, tensor in tensors.items()}


def norm(tensor: Tensor) -> float:
    """The Euclidean norm: a bound of a hundred medians does not need more of it than float32 gives."""
    if tensor.numel() <= PIECE:
        return piece_norm(tensor)
    return math.hypot(*map(piece_norm, torch.split(tensor.reshape(-1), PIECE)))


def piece_norm(piece: Tensor) -> float:
    """The same of a piece; in float64, which takes several times as long, where squares would leave float32."""
    size = float(torch.linalg.vector_norm(piece))
    return size if 1e-15 < size < 1e15 else float(torch.linalg.vector_norm(piece, dtype=torch.float64))


def medians(replies: Sequence[Mapping[str, float]], middle: Callable[[Iterable[float]], float]) -> dict[str, float]:
    """The median norm of each tensor."""
    return {name: middle([norms[name] for norms in replies]) for name in (replies[0] if replies else ())}


def most_samples(sizes: Tensor, bound: float) -> float:
    """The most samples that one client of these sizes counts for; a client alone is all there is."""
    return bound * float(np.median(sizes.numpy())) if bound and len(sizes) > 1 else float("inf")
