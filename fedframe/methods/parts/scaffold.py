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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedframe.core import ClientContext, Key, Method, ModelSize, Part, Server, State, Upload
from fedframe.core.optimizers import normalised_steps
from fedframe.errors import SettingError
from fedframe.settings import Settings

if TYPE_CHECKING:
    from fedframe.core.job import Job

C = Key[Tensor]("scaffold/c")  # c on the server, c_k in a client's memory
CHANGE = Key[Tensor]("scaffold/change")  # c_k+ - c_k
SHIFT = Key[dict[str, Tensor]]("scaffold/shift")  # c - c_k by name


@dataclass(frozen=True)
class Scaffold(Part):
    """Control variates on server and clients; a client's own survives on the client."""

    name: ClassVar[str] = "scaffold"
    paper: ClassVar[str] = "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging, ICML 2020"
    memory: ClassVar[tuple[str, ...]] = (C,)
    compares_with_server: ClassVar[bool] = True

    def check_method(self, method: Method) -> None:
        """Refuse steps that are not lr times a gradient, and methods without a shared model."""
        step, merge = method.optional_slot("step"), method.slot("merge")
        if step is not None and not step.sgd_steps:
            raise SettingError(
                f"{method.name!r} cannot be combined: 'scaffold' reads gradients from steps of length lr, which "
                f"{step.name!r} does not take; leave one of them out."
            )
        if not merge.shares_a_model:
            raise SettingError(
                f"{method.name!r} cannot be combined: with {merge.name!r} every client has a model of its own, and "
                "'scaffold' is about a shared one; leave one of them out."
            )

    def check_settings(self, settings: Settings) -> None:
        """Refuse optimisers without a step length, by which option II divides."""
        if settings.optimizer != "sgd":
            raise SettingError(f"scaffold needs optimizer = 'sgd', not {settings.optimizer!r}.")
        if settings.keep_optimizer:
            raise SettingError(
                "scaffold reads its variates from a round's own steps, and keep_optimizer = true brings in those of "
                "earlier rounds; leave it out."
            )

    def begin(self, context: ClientContext) -> None:
        """Prepare c - c_k by name."""
        server = context.received[C]
        own = context.memory.setdefault(C, torch.zeros_like(server))
        context.scratch[SHIFT] = context.job.roles.layout.trainable_views(server - own)

    def correct(self, context: ClientContext) -> None:
        """g <- g - c_k + c."""
        shift = context.scratch[SHIFT]
        for name, weight in context.named.items():
            if weight.grad is not None and name in shift:
                weight.grad.add_(shift[name])  # line 9

    def finish(self, context: ClientContext) -> None:
        """The client's new variate, and its change for the server."""
        server, own = context.received[C], context.memory[C]
        moved = context.reply["update"][: len(server)]  # y - x
        mass = normalised_steps(context.steps, context.job.settings.momentum, context.job.settings.nesterov)
        new = own - server - moved / (mass * context.lr)  # line 10, option II
        context.reply[CHANGE] = new - own
        context.memory[C] = new

    def server_state(self, server: Server) -> dict[str, State]:
        """Start with c = 0."""
        return {C: State(torch.zeros(server.layout.trainable), broadcast=True)}

    def uploads(self, size: ModelSize) -> dict[str, Upload]:
        """c_k+ - c_k."""
        return {CHANGE: Upload([size.trainable], "weighted_sum")}

    def after_merge(self, server: Server, clients: int) -> None:
        """Add the changes to c, each with the client's share in the mean over all clients."""
        total = server.total(CHANGE) / server.weight_of_all
        server.state[C] = (server.state[C].double() + total).float()  # line 17

    def furthest(self, longest: Mapping[str, float], round: int, job: Job) -> Mapping[str, float] | None:
        """c moves by no more than the longest change of a client's."""
        return {C: longest[CHANGE]}
