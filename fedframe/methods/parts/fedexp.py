"""FedExP: the server's step is longer the more the clients' updates disagree.

Jhunjhunwala, Wang, Joshi: FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023, Algorithm 1:
    w <- w + eta mean,  eta = max(1, sum_k p_k ||D_k||^2 / (2 (||mean||^2 + eps))),  mean = sum_k p_k D_k     (Eq. 6)

Differs from the paper in: p_k are the run's weights (`--weighting uniform` is the paper's 1/M). The final model is
the last one, where the paper takes the average of the last two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, ModelSize, Part, RunningMean, Server, Upload

if TYPE_CHECKING:
    from fedframe.core.job import Job


@dataclass(frozen=True)
class FedExP(Part):
    """The mean update, extrapolated; `eps` keeps the step short where updates cancel."""

    name: ClassVar[str] = "fedexp"
    paper: ClassVar[str] = "Jhunjhunwala et al., FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023"

    eps: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-3
    """The larger, the shorter the step where updates cancel; a very large value is FedAvg."""

    def finish(self, context: ClientContext) -> None:
        """Send ||D_k||^2."""
        context.reply["fedexp/square"] = context.trainable(context.reply["update"]).double().square().sum()[None]

    def uploads(self, size: ModelSize) -> dict[str, Upload]:
        """One number per client, weighted like its update."""
        return {"fedexp/square": Upload([1], "weighted_sum")}

    def server_step(self, server: Server, updates: RunningMean) -> Tensor:
        """Go eta times as far as the mean; where nothing is left of it (eps = 0), any eta will do."""
        mean = updates.mean()
        ratio = server.total("fedexp/square") / updates.weight / (2 * (mean.square().sum() + self.eps))
        server.figures["fedexp/eta"] = eta = float(ratio.nan_to_num(1.0, posinf=1.0).clamp_min(1.0))  # Eq. 6
        return eta * mean

    def furthest(self, longest: Mapping[str, float], round: int, job: Job) -> Mapping[str, float] | None:
        """eta |D| with eta <= 1 or mean |D_k|^2 / (2 (|D|^2 + eps)), which is largest for |D|^2 = eps."""
        size = longest["update"]
        return {"model": max(size, size * size / (4 * math.sqrt(self.eps)))} if self.eps else None
