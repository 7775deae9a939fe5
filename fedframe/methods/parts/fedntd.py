"""FedNTD: what the server's model says about the classes that a sample does not belong to is kept in local training.

Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated Learning, NeurIPS 2022. For a
sample of class y, with the local logits l and the server's model's logits g, the softmax runs over c != y only:
    q_c = exp(l_c / tau) / sum_{c' != y} exp(l_c' / tau),    q^g_c likewise
    loss = CE + beta KL(q^g || q),   mean over the batch
The true class is learnt from the client's data alone; the order of the others, among them classes that the client
lacks, is not forgotten. beta = 0 is FedAvg.

Differs from the paper in: the server's model is in evaluation mode. Settings are those of the authors' public code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Part
from fedframe.methods.parts.teacher import load_teacher, teacher


@dataclass(frozen=True)
class FedNTD(Part):
    """Distillation from the server's model, of weight beta, on all classes but a sample's own."""

    name: ClassVar[str] = "fedntd"
    compares_with_server: ClassVar[bool] = True
    paper: ClassVar[str] = "Lee et al., Preservation of the Global Knowledge by Not-True Distillation, NeurIPS 2022"

    beta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Weight of the distillation; 0 is FedAvg."""
    tau: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Temperature of both softmaxes."""

    def begin(self, context: ClientContext) -> None:
        """Keep the server's model."""
        if context.training and self.beta:
            load_teacher(context)

    def penalty(self, context: ClientContext) -> Tensor:
        """beta KL(q^g || q)."""
        if not self.beta:
            return context.logits.new_zeros(())
        with torch.no_grad():
            net = teacher(context)
            theirs = not_true(net.head(context.job.method.embed(net, context.inputs)), context.labels) / self.tau
        ours = not_true(context.logits, context.labels) / self.tau
        return self.beta * F.kl_div(ours.log_softmax(1), theirs.log_softmax(1), reduction="batchmean", log_target=True)


def not_true(logits: Tensor, labels: Tensor) -> Tensor:
    """The logits of all classes but the true one (batch, classes - 1)."""
    others = F.one_hot(labels, logits.shape[1]) == 0
    return logits[others].view(len(logits), -1)
