"""q-FedAvg: clients with a higher loss weigh more in the server's step, so that accuracy is spread more evenly.

Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020, Algorithm 2. With F_k the loss of client k at the
server's weights w, D_k = L (w - w_k), L = 1/lr:   w <- w - sum_k F_k^q D_k / sum_k (q F_k^(q-1) ||D_k||^2 + L F_k^q)
Differs from the paper in: both sums have the run's weights (there, clients are drawn by them), so that q = 0 is FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field
from torch import Tensor, float64, tensor

from fedframe.core import ClientContext, Key, ModelSize, Part, RunningMean, Server, Upload

if TYPE_CHECKING:
    from fedframe.core.job import Job


@dataclass(frozen=True)
class QFedAvg(Part):
    """Updates weighted by the q-th power of the loss; q = 0 is FedAvg."""

    name: ClassVar[str] = "qfedavg"
    paper: ClassVar[str] = "Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020"
    rank: ClassVar[int] = 50  # when the loss is prepared, and after others have read the update
    f_k: ClassVar[Key[float]] = Key("qfedavg/loss")  # the loss at w
    q: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """The power of the loss that weighs an update; 0 is FedAvg."""

    def begin(self, context: ClientContext) -> None:
        """Compute F_k over all of the client's training samples."""
        context.scratch[self.f_k] = max(context.mean_loss(), 1e-10) if context.training else 0.0

    def finish(self, context: ClientContext) -> None:
        """Algorithm 2, both divided by L: h_k = F_k^q (1 + q ||D_k||^2 / (L F_k)), and F_k^q D_k as the update."""
        loss, update = tensor([context.scratch[self.f_k]], dtype=float64), context.trainable(context.reply["update"])
        context.reply["qfedavg/h"] = loss**self.q * (1 + self.q * update.double().square().sum() / (loss * context.lr))
        update *= loss**self.q

    def uploads(self, size: ModelSize) -> dict[str, Upload]:
        """h_k, weighted like the update."""
        return {"qfedavg/h": Upload([1], "weighted_sum")}

    def server_step(self, server: Server, updates: RunningMean) -> Tensor:
        """The quotient of the two sums."""
        return updates.total / server.total("qfedavg/h")

    def furthest(self, longest: Mapping[str, float], round: int, job: Job) -> Mapping[str, float] | None:
        """A mean of updates, each over what it was multiplied by and more."""
        return {"model": longest["update"]}
