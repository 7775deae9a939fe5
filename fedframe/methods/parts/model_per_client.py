"""The base of APPLE and FedMTL: the server keeps a model per client and sends all of them to every client of a round.

A client's update is that of its own model. The server's `model` is the mean of those that were trained, by samples:
no client's model, but where a new client starts. What a round costs in bytes is in the run's metrics like all that is
sent; a federation for which it would be too much is refused with the number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Merger, Message, Method, Model, Part, Server, State
from fedframe.core.model import count_parameters
from fedframe.errors import SettingError

PIECE = 1 << 16  # numbers per model of which the mean is taken at once


@dataclass(frozen=True)
class ModelPerClient(Part):
    """All clients' models, on the server and with every client."""

    shares_a_model = False
    rank: ClassVar[int] = 100  # acts on gradients that are complete, and on the reply that others have read

    most_gb: Annotated[float, Field(gt=0)] = 1.0  # of what one client downloads in a round
    """Most gigabytes that one client may have to download in a round."""

    def check_method(self, method: Method) -> None:
        """Refuse server stages: there is no shared model that could be fitted."""
        stage = method.optional_slot("server_stage")
        if stage is not None:
            raise SettingError(
                f"{method.name!r} cannot be combined: with {self.name!r} every client has a model of its own, and "
                f"{stage.name!r} is about a shared one; leave one of them out."
            )

    def check_model(self, model: Model, clients: int) -> None:
        """Refuse more clients, or a larger net, than `most_gb` allows."""
        statistics = sum(buffer.numel() for buffer in model.buffers() if buffer.is_floating_point())
        each = 4 * (count_parameters(model) + statistics) / 1e9
        total = each * (clients + 1)  # with their mean
        if total > self.most_gb:
            fitting = int(self.most_gb / each) - 1
            fewer = f"at most {fitting} clients, " if fitting > 1 else ""
            enough = math.ceil(1000 * total) / 1000
            raise SettingError(
                f"{self.name} sends the models of all {clients} clients and their mean to each of them: {total:.3g} "
                f"GB, more than {self.name}.most_gb = {self.most_gb:g}; use {fewer}a smaller net, or "
                f"{self.name}.most_gb = {enough:g}."
            )

    # -- on the server -------------------------------------------------------------------------------------------------
    def server_state(self, server: Server) -> dict[str, State]:
        """The models, all alike at first; the clients' samples; in how many rounds each was."""
        samples = server.job.federation.train.sizes()
        tensors = {
            "models": server.model.repeat(len(samples), 1),
            "samples": samples.float(),
            "visits": torch.zeros(len(samples)),
        }
        return {f"{self.name}/{name}": State(tensor, broadcast=True) for name, tensor in tensors.items()}

    def merger(self, server: Server) -> Merger:
        """Each update goes to its own model."""
        return RowsMerger(server, self.name)

    # -- on the client -------------------------------------------------------------------------------------------------
    def was_in_training(self, context: ClientContext) -> bool:
        """Whether the server has a trained model of this client."""
        visits = context.received[f"{self.name}/visits"]
        return len(visits) == len(context.job.federation) and bool(visits[context.client] > 0)

    def model_of(self, context: ClientContext) -> Tensor:
        """The client's own model as the server has it; a new client's is the mean."""
        models = context.received[f"{self.name}/models"]
        return models[context.client] if len(models) == len(context.job.federation) else context.start


class RowsMerger:
    """Adds each client's update to its own row; the shared vector becomes the mean of the rows that were trained."""

    def __init__(self, server: Server, name: str) -> None:
        self.server, self.name = server, name
        self.updates: dict[int, Tensor] = {}

    def add(self, reply: Message, weight: float) -> None:
        """Keep one update: until the round is over, its clients must receive the models that it began with."""
        self.updates[reply.unit] = reply.tensors["update"]

    def finish(self) -> Tensor:
        """Move the rows in place, and the mean in pieces: all models together may be as large as memory allows."""
        state = self.server.state
        models, visits = state[f"{self.name}/models"], state[f"{self.name}/visits"]
        for client in list(self.updates):
            models[client] = (models[client].double() + self.updates.pop(client).double()).float()
            visits[client] += 1
        shares = state[f"{self.name}/samples"].double() * (visits > 0)
        pieces = torch.split(models[:, : self.server.layout.trainable], PIECE, dim=1)
        mean = torch.cat([(shares / shares.sum()) @ piece.double() for piece in pieces])
        return mean - self.server.model[: len(mean)].double()
