"""FedGloSS: clients train from a point a little uphill of the server's model, so that the server finds a flat minimum.

Caldarola et al., Beyond Local Sharpness: Communication-Efficient Global Sharpness-aware Minimization for Federated
Learning, CVPR 2025. SAM's two gradients would be two rounds; the ascent is taken along the last round's pseudo-gradient
instead, the mean D_{t-1} of (start - local model):
    w~_t = w_t + rho_t D_{t-1} / ||D_{t-1}||,    w_{t+1} = w_t - D_t - beta sigma,    D_t of clients that begin at w~_t
The clients' objectives are tied together by ADMM, with multipliers sigma_k on the clients and their mean sigma on the
server and a pull of 1 / beta towards w~_t. That is FedDyn from the point w~_t with alpha = 1 / beta (`feddyn.py`), so
that rho = 0 is FedDyn, bit for bit, and alpha = 0 as well FedAvg. rho_t rises linearly over the first rounds.

Differs from the paper in: the ascent e_t = w~_t - w_t is sent beside w_t, so that w_t is what is scored between
rounds; twice as much goes down. The mean is weighted by samples, as in FedDyn here. In the recipe clients take steps of
SAM by `fedsam`, whose rho does not rise, and in whose ascent the pull of ADMM counts. rho_0 is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Key, RunningMean, Server, State
from fedframe.methods.parts.feddyn import FedDyn

if TYPE_CHECKING:
    from fedframe.core.job import Job

ASCENT = Key[Tensor]("fedgloss/ascent")  # e_t of the next round
DRIFT = Key[Tensor]("fedgloss/drift")  # FedDyn's, under this part's name


@dataclass(frozen=True)
class FedGloSS(FedDyn):
    """Sharpness-aware steps of the server, along the last round's pseudo-gradient, with FedDyn's penalties."""

    name: ClassVar[str] = "fedgloss"
    paper: ClassVar[str] = "Caldarola et al., Communication-Efficient Global Sharpness-aware Minimization, CVPR 2025"
    memory: ClassVar[tuple[str, ...]] = (DRIFT,)
    drift: ClassVar[Key[Tensor]] = DRIFT
    rank: ClassVar[int] = -10  # others compare with where the client begins

    alpha: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1  # 1 / beta
    """Weight of the ADMM terms, 1/beta in the paper; 0 leaves them out."""
    rho: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.15
    """How far uphill clients begin; 0 is FedDyn."""
    warm: Annotated[float, Field(ge=0, le=1)] = 0.2  # share of all rounds in which rho rises
    """Share of all rounds in which rho rises from 0."""

    def begin(self, context: ClientContext) -> None:
        """Start from w~_t."""
        if context.training and self.rho:
            start = context.start.clone()
            context.trainable(start).add_(context.received[ASCENT])
            context.start = start
            with torch.no_grad():
                context.runtime.flat.copy_(start)
        super().begin(context)

    def server_state(self, server: Server) -> dict[str, State]:
        """No ascent in the first round."""
        ascent = State(torch.zeros(server.layout.trainable), broadcast=True)
        return super().server_state(server) | ({ASCENT: ascent} if self.rho else {})

    def server_step(self, server: Server, updates: RunningMean) -> Tensor:
        """FedDyn's step from w_t, and the ascent of the next round."""
        if self.rho:
            change, rounds = updates.mean(), server.job.settings.rounds
            rho = self.rho * min(1.0, server.current_round / max(1.0, self.warm * rounds))
            server.state[ASCENT] = (-rho * change / change.norm().clamp_min(1e-12)).float()
        return super().server_step(server, updates)

    def furthest(self, longest: Mapping[str, float], round: int, job: Job) -> Mapping[str, float] | None:
        """FedDyn's, and an ascent that is never longer than rho."""
        return {**(super().furthest(longest, round, job) or {}), ASCENT: 2 * self.rho}
