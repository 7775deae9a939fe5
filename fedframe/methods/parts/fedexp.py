"""FedExP: the server's step length follows from how much the clients' updates disagree.

Jhunjhunwala, Wang, Joshi: FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023, Eq. 6:
    w <- w + eta mean,  eta = max(1, sum_k p_k ||D_k||^2 / (2 (||mean||^2 + eps))),  mean = sum_k p_k D_k

Differs from the paper in: p_k are the run's weights (the paper's is `weighting: uniform`); its average of the last two
models is not taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, ModelSize, Part, RunningMean, Server, Upload


@dataclass(frozen=True)
class FedExP(Part):
    """The mean update, extrapolated; `eps` keeps the step short where updates cancel."""

    name: ClassVar[str] = "fedexp"
    paper: ClassVar[str] = "Jhunjhunwala et al., FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023"

    eps: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-3

    def finish(self, context: ClientContext) -> None:
        """||D_k||^2."""
        context.reply["fedexp/square"] = context.trainable(context.reply["update"]).double().square().sum()[None]

    def uploads(self, size: ModelSize) -> dict[str, Upload]:
        """One number."""
        return {"fedexp/square": Upload([1], "weighted_sum")}

    def server_step(self, server: Server, updates: RunningMean) -> Tensor:
        """eta times the mean."""
        mean = updates.mean()
        ratio = server.total("fedexp/square") / updates.weight / (2 * (mean.square().sum() + self.eps))
        server.figures["fedexp/eta"] = eta = float(ratio.nan_to_num(1.0).clamp_min(1.0))  # Eq. 6
        return eta * mean
