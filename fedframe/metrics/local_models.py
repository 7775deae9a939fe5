"""The models of a round's clients as local training has left them, for measures that compare them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedframe.core.job import Job
from fedframe.core.message import Message
from fedframe.core.model import Model, load_tensors
from fedframe.core.part import overrides
from fedframe.core.server import Server
from fedframe.metrics.sampling import some_clients

MOST_BYTES = 256 << 20  # of updates that are kept until the round is over


class LocalModels:
    """Keeps the updates of some of a round's clients and puts each model back together, one at a time.

    Shared weights are the server's plus the client's update; private ones are read from the client's state. There is
    one net for all of them, and it is in evaluation mode.
    """

    def __init__(self, job: Job, most: int | None = None) -> None:
        self.job = job
        fitting = max(2, MOST_BYTES // max(1, 4 * job.roles.layout.size))
        self.most = fitting if most is None else min(most, fitting)
        self.updates: dict[int, Tensor] = {}
        # Where the server keeps a model per client, an update is not a change of the shared one.
        self.whole = not overrides(type(job.method.slot("merge")), "load_personal")
        self._net: tuple[Model, Tensor] | None = None

    def begin(self, server: Server, clients: Sequence[int]) -> None:
        """A round begins: its model, and whose updates will be kept."""
        self.start, self.fixed = server.model.clone(), dict(server.fixed_overrides)
        self.chosen = set(some_clients(clients, self.most, self.job.settings.seed))
        self.updates = {}

    def on_reply(self, reply: Message) -> None:
        """Keep an update if it is one of those."""
        if reply.unit in self.chosen:
            self.updates[reply.unit] = reply.tensors["update"].clone()

    def clients(self) -> list[int]:
        """Whose updates were kept, by number."""
        return sorted(self.updates)

    def each(self, round: int, clients: Sequence[int]) -> Iterator[tuple[int, Model]]:
        """These clients' models one after the other: the next overwrites the last."""
        if not self.whole:
            return
        job = self.job
        if self._net is None:
            model = job.fresh_model()
            self._net = (model, job.roles.layout.bind(model))
            self.initial = {name: t.detach().clone() for name, t in model.state_dict().items()}
        model, flat = self._net
        for client in clients:
            private = self.private(client, round)
            if private is None:
                continue
            load_tensors(model, {name: self.initial[name] for name in job.roles.fixed})
            load_tensors(model, {**self.fixed, **private})
            with torch.no_grad():
                flat.copy_(self.start + self.updates[client])
            yield client, model.eval()

    def private(self, client: int, round: int) -> dict[str, Tensor] | None:
        """The client's private tensors after a round; None if they are not at hand."""
        names = self.job.roles.private
        if not names:
            return {}
        memory = self.job.store.load(client, round + 1)
        kept = {name: memory[f"model/{name}"] for name in names if f"model/{name}" in memory}
        return kept if len(kept) == len(names) else None
