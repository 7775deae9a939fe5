"""FedNova: updates are normalised before they are averaged, so that clients with more local steps do not pull more.

Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020. A
client's update is -lr sum_s a_s g_s, with a_s the weight with which the gradient of step s enters it; the server takes
    w <- w + tau_eff sum_k p_k (w_k - w) / ||a_k||_1,    tau_eff = sum_k p_k ||a_k||_1
Where all clients take equally many steps it is FedAvg, bit for bit.

Differs from the paper in: ||a||_1 is not taken from a formula per optimiser but found by letting the optimiser walk
along a gradient of one. That is the paper's (steps - m (1 - m^steps) / (1 - m)) / (1 - m) for momentum m and
(1 - (1 - lr mu)^steps) / (lr mu) for FedProx, and is right for Nesterov momentum and for both together, too. Adam
counts its steps. Momentum that a client keeps between rounds (`keep_optimizer`), weight decay and clipping are not in
it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from fedframe.core import ClientContext, Key, Merger, Message, ModelSize, Part, RunningMean, Server, Upload
from fedframe.core.optimizers import normalised_steps

if TYPE_CHECKING:
    from fedframe.core.job import Job

STEPS_SLACK = 4.0  # parts may take steps of their own
ROUNDING = 1e-6
REPORTED = Key[float]("fednova/norm")  # ||a||_1


@dataclass(frozen=True)
class FedNova(Part):
    """Normalised averaging."""

    name: ClassVar[str] = "fednova"
    paper: ClassVar[str] = "Wang et al., Tackling the Objective Inconsistency Problem, NeurIPS 2020"

    def finish(self, context: ClientContext) -> None:
        """Report ||a||_1 of the steps that were taken."""
        settings = context.job.settings
        context.numbers[REPORTED] = normalised_steps(
            context.steps, settings.momentum, settings.nesterov, context.lr * context.pull
        )

    def uploads(self, size: ModelSize) -> dict[str, Upload]:
        """||a||_1."""
        return {REPORTED: Upload((), "number")}

    def merger(self, server: Server) -> Merger:
        """A running sum: memory does not grow with the clients."""
        return NovaMerger(server)

    def furthest(self, longest: Mapping[str, float], round: int, job: Job) -> Mapping[str, float] | None:
        """As far as a client goes that takes the mean number of steps."""
        return {"model": longest["update"]}


class NovaMerger:
    """Adds up normalised updates.

    Norms are taken relative to the first client's, so that nothing is rounded where they are all equal.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.running = RunningMean(server.layout.trainable)
        self.first = self.weight = self.relative = 0.0

    def add(self, reply: Message, weight: float) -> None:
        """Take one client's update."""
        norm, most = float(reply.numbers[REPORTED]), self.most(reply)
        if norm < 1 - ROUNDING:
            self.server.note(
                f"Round {reply.round}: the update of client {reply.unit} was left out: {REPORTED} is {norm!r}, and one "
                "step is 1."
            )
            return
        if norm > most:
            self.server.note(
                f"Round {reply.round}: client {reply.unit} says that {REPORTED} is {norm:.3g}, and it counts as "
                f"{most:.3g}: so many steps take {STEPS_SLACK:g} times the samples that it counts for."
            )
            norm = most
        self.first = self.first or norm
        self.running.add(reply.tensors["update"][: self.server.layout.trainable], weight * (self.first / norm))
        self.weight += weight
        self.relative += weight * (norm / self.first)

    def most(self, reply: Message) -> float:
        """What ||a||_1 can be for the samples that a client counts for: a number that it only claims scales the step.

        A pull to the server's model makes it smaller, and momentum m at most 1 / (1 - m) times as large.
        """
        settings = self.server.job.settings
        steps = settings.steps or settings.epochs * max(
            1, math.ceil(self.server.limits.samples(reply) / settings.batch)
        )
        return STEPS_SLACK * steps / (1 - settings.momentum)

    def finish(self) -> Tensor:
        """The step: tau_eff times the mean of the normalised updates."""
        if not self.weight:
            return self.running.total
        tau = self.relative / self.weight  # tau_eff in units of the first norm
        self.server.figures["fednova/tau_eff"] = tau * self.first
        return self.running.total.div_(self.weight).mul_(tau)  # in place: no second vector of a large model
