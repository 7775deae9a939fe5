"""pFedMe: the shared model minimises Moreau envelopes, whose minimisers are the clients' own models.

Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, Eq. 2 and 3, Algorithm 1:
    F_k(w) = min_theta f_k(theta) + lambda/2 ||theta - w||^2
    theta  K steps of the local optimiser on one batch, from w           (line 7)
    w_k <- w_k - eta lambda (w_k - theta)                                (line 8)
    w   <- (1 - beta) w + beta mean of w_k                               (line 12), the part `mix`
With K = 1 and beta = 1 it is FedAvg with the learning rate eta lambda lr; with eta = 1/lambda the local model is theta,
and with all three it is FedAvg, bit for bit. `lr` is the rate of theta's steps.

Differs from the paper in: theta starts from w for every batch, where the authors' code goes on from the last batch's.
Only the clients of a round train in it; in the code all do. Models are averaged by samples unless `--weighting uniform`
asks for the paper's plain mean. `eta` is larger than the paper's .005, which is made for 800 rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Key, Part, RunningMean, Server
from fedframe.core.model import load_tensors
from fedframe.methods.parts.ditto import check_pull
from fedframe.settings import Settings

if TYPE_CHECKING:
    from fedframe.core.job import Job

PAPER = "Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020"
LOCAL = Key[dict[str, Tensor]]("pfedme/w")  # the local model w before the step
THETA = Key[dict[str, Tensor]]("pfedme/theta")  # the personal model after it


@dataclass(frozen=True)
class PFedMe(Part):
    """Each step solves for the client's own model near the local one, then moves the local one towards it."""

    name: ClassVar[str] = "pfedme"
    paper: ClassVar[str] = PAPER
    memory: ClassVar[tuple[str, ...]] = ("pfedme/*",)
    compares_with_server: ClassVar[bool] = True
    sgd_steps: ClassVar[bool] = False  # a step goes towards theta
    rank: ClassVar[int] = 100  # puts theta into the model when the others have seen the round's

    lam: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 15.0
    """Strength of the pull towards the local model, lambda."""
    steps: Annotated[int, Field(ge=1)] = 5  # K
    """Steps of the personal model on a batch, at the run's `lr`, K."""
    eta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.05
    """Learning rate of the local model."""

    def check_settings(self, settings: Settings) -> None:
        """Refuse a pull that is too strong for the step length: theta would diverge."""
        check_pull("pfedme", self.lam, settings)

    def step(self, context: ClientContext) -> Tensor:
        """Solve for theta on this batch, then move w towards it; the loss is that of the local model."""
        before = {name: weight.detach().clone() for name, weight in context.named.items()}
        context.scratch[LOCAL] = before
        loss = context.compute_gradient()
        context.apply_gradient()
        for _ in range(self.steps - 1):  # line 7
            context.compute_gradient()
            context.apply_gradient()
        context.scratch[THETA] = {name: weight.detach().clone() for name, weight in context.named.items()}
        share = self.eta * self.lam
        if share != 1:  # all of the way is theta itself, which a sum of differences would round
            with torch.no_grad():
                for name, weight in context.named.items():
                    weight.sub_(before[name]).mul_(share).add_(before[name])  # line 8
        return loss

    def correct(self, context: ClientContext) -> None:
        """g <- g + lambda (theta - w)."""
        for name, weight in context.named.items():
            if weight.grad is not None:
                weight.grad.add_(weight.detach() - context.scratch[LOCAL][name], alpha=self.lam)  # Eq. 3

    def finish(self, context: ClientContext) -> None:
        """Keep theta."""
        load_tensors(context.model, context.scratch.get(THETA, {}))
        context.keep_model("pfedme")

    def load_personal(self, context: ClientContext) -> None:
        """Load theta; a client that was in no round takes the same steps from the shared model, alone."""
        if not context.load_model("pfedme") and context.kind == "personalise":
            context.train_missed_rounds((*context.job.method.parts_with("predict"), self))
            load_tensors(context.model, context.scratch.get(THETA, {}))


@dataclass(frozen=True)
class Mix(Part):
    """The server goes beta times as far as the mean of the updates."""

    name: ClassVar[str] = "mix"
    paper: ClassVar[str] = PAPER

    beta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """How far the server moves, in units of the mean update."""

    def server_step(self, server: Server, updates: RunningMean) -> Tensor:
        """(1 - beta) w + beta mean of w_k = w + beta mean of (w_k - w)."""
        return updates.into_mean().mul_(self.beta)  # line 12

    def furthest(self, longest: Mapping[str, float], round: int, job: Job) -> Mapping[str, float] | None:
        """beta times as far as the mean."""
        return {"model": self.beta * longest["update"]}
