"""SCAFFOLD: control variates take the client's drift out of every local gradient.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020, Algorithm 1:
    y <- y - lr (g(y) - c_k + c)                                        (line 9)
    c_k+ = c_k - c + (x - y) / (steps lr)                               (line 10, option II)
    c <- c + 1/N sum_{k in S} (c_k+ - c_k)                              (line 17)
All variates start at zero, so the first round is FedAvg's.

Differs from the paper in: with momentum a step of the optimiser is not one gradient long. `steps` in line 10 is then
the sum of the weights with which gradients enter x - y (FedNova's ||a||_1), so c_k+ is again a mean of gradients.
Models are averaged by samples, as in all methods here, unless `--weighting uniform` asks for the paper's plain mean,
and so are variates: only then do the corrections cancel in the step that the model takes, as far as all clients take
equally many steps (`--steps`; with epochs, clients of different size do not, and a rest remains). With models
averaged by samples and variates plainly, as in much public code, clients of very different size push the model away
round after round (Fashion-MNIST, 20 clients, dirichlet:0.1: every learning rate diverged).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from fedframe.core.aggregation import RunningMean
from fedframe.core.message import Message
from fedframe.core.optimizers import normalised_steps
from fedframe.core.part import Part
from fedframe.errors import SettingError

if TYPE_CHECKING:
    from fedframe.core.client_context import ClientContext
    from fedframe.core.server import Server
    from fedframe.settings import Settings


@dataclass(frozen=True)
class Scaffold(Part):
    """Control variates on server and clients; a client's own survives on the client."""

    name: ClassVar[str] = "scaffold"
    paper: ClassVar[str] = "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging, ICML 2020"
    remembers: ClassVar[bool] = True
    sums: ClassVar[Literal["", "weighted", "plain"]] = "weighted"

    def check(self, settings: Settings) -> None:
        """Option II divides by the step length, which only SGD has."""
        if settings.optimizer != "sgd":
            raise SettingError(f"scaffold needs optimizer = 'sgd', not {settings.optimizer!r}.")
        if settings.keep_optimizer:
            raise SettingError(
                "scaffold reads its variates from a round's own steps, and keep_optimizer = true brings in those of "
                "earlier rounds; leave it out."
            )

    def begin(self, context: ClientContext) -> None:
        """Have c - c_k at hand by name."""
        server = context.received["scaffold/c"]
        own = context.memory.setdefault("scaffold/c", torch.zeros_like(server))
        context.scratch["scaffold"] = context.job.roles.layout.trainable_views(server - own)

    def correct(self, context: ClientContext) -> None:
        """g <- g - c_k + c (line 9)."""
        shift = context.scratch["scaffold"]
        for name, weight in context.named.items():
            if weight.grad is not None and name in shift:
                weight.grad.add_(shift[name])

    def finish(self, context: ClientContext) -> None:
        """The client's new variate, and its change for the server (line 10)."""
        server, own = context.received["scaffold/c"], context.memory["scaffold/c"]
        moved = context.reply["update"][: len(server)]  # y - x
        mass = normalised_steps(context.steps, context.job.settings.momentum, context.job.settings.nesterov)
        new = own - server - moved / (mass * context.lr)
        context.reply["scaffold/change"] = new - own
        context.memory["scaffold/c"] = new

    def server_state(self, server: Server) -> dict[str, Tensor]:
        """c = 0."""
        return {"scaffold/c": torch.zeros(server.layout.trainable)}

    def uploads(self, server: Server) -> dict[str, torch.Size]:
        """c_k+ - c_k."""
        return {"scaffold/change": torch.Size([server.layout.trainable])}

    def broadcast(self, server: Server) -> dict[str, Tensor]:
        """c."""
        return {"scaffold/c": server.state["scaffold/c"]}

    def absorb(self, server: Server, reply: Message, weight: float) -> None:
        """Add up the changes."""
        running = server.scratch.setdefault("scaffold", RunningMean(server.layout.trainable))
        running.add(reply.tensors["scaffold/change"], weight)

    def after_merge(self, server: Server, clients: int) -> None:
        """c <- c + the changes, each with the client's share in the mean over all clients (line 17)."""
        total = server.scratch["scaffold"].total / server.weight_of_all
        server.state["scaffold/c"] = (server.state["scaffold/c"].double() + total).float()
