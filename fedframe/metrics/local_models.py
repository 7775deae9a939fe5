"""The models of a round's clients after local training, for measures that compare them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedframe.core.job import Job
from fedframe.core.message import Message
from fedframe.core.model import Model, load_tensors
from fedframe.core.part import overrides
from fedframe.core.server import Server
from fedframe.metrics.sampling import sample_clients

MOST_BYTES = 256 << 20  # of updates that are kept until the round is over


class LocalModels:
    """Keeps the updates of some of a round's clients and reconstructs their models, one at a time.

    Shared weights are the server's plus the client's update; private ones are read from the client's state. There is
    one net for all of them, in evaluation mode.
    """

    def __init__(self, job: Job, most: int | None = None) -> None:
        self.job = job
        affordable = max(2, MOST_BYTES // max(1, 4 * job.roles.layout.size))
        self.most = affordable if most is None else min(most, affordable)
        self.updates: dict[int, Tensor] = {}
        # Where the server keeps a model per client, an update is not a change of the shared one.
        self.whole = not overrides(type(job.method.slot("merge")), "load_personal")
        self._net: tuple[Model, Tensor] | None = None

    def begin(self, server: Server, clients: Sequence[int]) -> None:
        """Begin a round: remember its model, and choose the clients whose updates are kept."""
        self.start, self.fixed = server.model.clone(), dict(server.fixed_overrides)
        self.chosen = set(sample_clients(clients, self.most, self.job.settings.seed))
        self.updates = {}

    def on_reply(self, reply: Message) -> None:
        """Keep the update of a chosen client."""
        if reply.unit in self.chosen:
            self.updates[reply.unit] = reply.tensors["update"].clone()

    def clients(self) -> list[int]:
        """The clients whose updates were kept, in order."""
        return sorted(self.updates)

    def each(self, round: int, clients: Sequence[int]) -> Iterator[tuple[int, Model]]:
        """The models of these clients, one at a time: each overwrites the one before."""
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
        """The client's private tensors after a round; None if they were not stored."""
        names = self.job.roles.private
        if not names:
            return {}
        memory = self.job.store.load(client, round + 1)
        kept = {name: memory[f"model/{name}"] for name in names if f"model/{name}" in memory}
        return kept if len(kept) == len(names) else None
