"""FedDyn: a penalty that changes from round to round, until a client's own optimum is everybody's.

Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, Algorithm 1, for m clients of which P_t take
part in round t:
    theta_k = argmin L_k(theta) - <g_k, theta> + alpha/2 ||theta - theta_{t-1}||^2       (on the client)
    g_k    <- g_k - alpha (theta_k - theta_{t-1})                                         (on the client)
    h      <- h - alpha 1/m sum_{k in P_t} (theta_k - theta_{t-1})                        (on the server)
    theta_t = mean_{k in P_t} theta_k - h / alpha                                         (on the server)
g_k and h start at zero, stay with a client that does not take part, and h is the mean of g_k over all m clients.
theta_t, the paper's cloud model, is the shared model: it goes out to the clients and is scored.

g_k and h are kept as d_k = -g_k / alpha and D = -h / alpha, in units of the weights: alpha then divides nothing. With
alpha = 0 both are 0/0; the part then leaves them out and is FedAvg, bit for bit. That is a choice and not a limit: D
does not depend on alpha, so a tiny alpha leaves the client alone and still adds D on the server. Nothing is divided by
a learning rate or a number of steps either, so momentum, Adam and any schedule are safe.

Differs from the paper in: local training is a few epochs, not an argmin. Both means are weighted by samples, as in all
methods here, D over the samples of all clients; `--weighting uniform` is Algorithm 1 as printed. (The authors' code
weights by giving small clients a larger alpha, which can make their steps diverge.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Key, Part, RunningMean, Server, State

if TYPE_CHECKING:
    from fedframe.core.job import Job

SHIFT = Key[dict[str, Tensor]]("feddyn/shift")  # d_k - theta_{t-1} by name
DRIFT = Key[Tensor]("feddyn/drift")  # d_k in a client's memory, D in the server's state


@dataclass(frozen=True)
class FedDyn(Part):
    """A linear and a quadratic penalty on the client; the mean of the linear ones corrects the server's model."""

    name: ClassVar[str] = "feddyn"
    paper: ClassVar[str] = "Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021"
    memory: ClassVar[tuple[str, ...]] = (DRIFT,)
    drift: ClassVar[Key[Tensor]] = DRIFT  # a part built on this one keeps it under its own name

    alpha: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    """Weight of the linear and the quadratic term; 0 is FedAvg."""

    def begin(self, context: ClientContext) -> None:
        """Prepare d_k - theta_{t-1} by name."""
        if context.training and self.alpha:
            start = context.start[: context.job.roles.layout.trainable]
            own = context.memory.setdefault(self.drift, torch.zeros(len(start))).to(start.device)
            context.scratch[SHIFT] = context.job.roles.layout.trainable_views(own - start)

    def correct(self, context: ClientContext) -> None:
        """g <- g - g_k + alpha (theta - theta_{t-1}), with g_k = -alpha d_k."""
        shift = context.scratch.get(SHIFT, {})
        for name, weight in context.named.items():
            if weight.grad is not None and name in shift:  # what is private has no counterpart on the server
                weight.grad.add_(weight.detach() + shift[name], alpha=self.alpha)  # Algorithm 1: theta_k

    def finish(self, context: ClientContext) -> None:
        """d_k <- d_k + theta_k - theta_{t-1}."""
        if self.alpha:
            context.memory[self.drift] = context.memory[self.drift] + context.trainable(context.reply["update"])

    def server_state(self, server: Server) -> dict[str, State]:
        """Start with D = 0."""
        return {self.drift: State(torch.zeros(server.layout.trainable))} if self.alpha else {}

    def server_step(self, server: Server, updates: RunningMean) -> Tensor:
        """Add the mean update and the new D, which every client's update moves by its share of all clients."""
        if not self.alpha:
            return updates.mean()
        drift = server.state[self.drift].double() + updates.total / server.weight_of_all  # Algorithm 1: h
        server.state[self.drift] = drift.float()
        return updates.mean() + drift  # Algorithm 1: theta_t

    def furthest(self, longest: Mapping[str, float], round: int, job: Job) -> Mapping[str, float] | None:
        """The mean, and at most the sum of all rounds' means until then."""
        return {"model": (round + 1) * longest["update"]}
