"""q-FedAvg: clients with a higher loss weigh more in the server's step, so that accuracy is spread more evenly.

Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020, Algorithm 2. With F_k the loss of client k at the
server's weights w, D_k = L (w - w_k), L = 1/lr:   w <- w - sum_k F_k^q D_k / sum_k (q F_k^(q-1) ||D_k||^2 + L F_k^q)
Differs from the paper in: the sums have the run's weights, so that q = 0 is FedAvg; both are divided by L.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, ModelSize, Part, RunningMean, Server, Upload


@dataclass(frozen=True)
class QFedAvg(Part):
    """Updates weighted by the q-th power of the loss; q = 0 is FedAvg."""

    name: ClassVar[str] = "qfedavg"
    paper: ClassVar[str] = "Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020"
    rank: ClassVar[int] = 50  # when the loss is prepared, and after others have read the update

    q: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0

    def begin(self, context: ClientContext) -> None:
        """F_k, over all of the client's training samples."""
        context.numbers["qfedavg/loss"] = max(context.mean_loss(), 1e-10) if context.training else 0.0

    def finish(self, context: ClientContext) -> None:
        """F_k^q D_k / L in the update's place, and the denominator's term / L."""
        loss, update = float(context.numbers["qfedavg/loss"]), context.trainable(context.reply["update"])
        steepness = self.q * loss ** (self.q - 1) * update.double().square().sum() / context.lr
        context.reply["qfedavg/h"] = (steepness + loss**self.q)[None]
        update *= loss**self.q

    def uploads(self, size: ModelSize) -> dict[str, Upload]:
        """One number."""
        return {"qfedavg/h": Upload([1], "weighted_sum")}

    def server_step(self, server: Server, updates: RunningMean) -> Tensor:
        """The quotient of the two sums."""
        return updates.total / server.total("qfedavg/h")
