"""FedDr+: dot regression under a frozen ETF, and features that keep to those of the server's model.

Kim et al., FedDr+: Stabilizing Dot-regression with Global Feature Distillation for Federated Learning, 2024 (arXiv
2406.02355). Dot regression draws a feature to its own class vector and pushes it from none, so nothing in it holds on
to classes that a client lacks; the distance to the features of the server's model does:
    L = beta L_DR + (1 - beta) L_FD
    L_DR = 1/2 (cos(v_y, f) - 1)^2,    L_FD = 1/d ||f - f_server||^2,   means over the batch
beta = 1 is dot regression alone, without the distillation.

Differs from the paper in: the server's model is in evaluation mode, and the features are those that reach the
classifier. The client stage has L_DR alone. The authors' beta could not be verified; public summaries of the paper give
the form of the loss only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext
from fedframe.methods.parts.dot_regression import DotRegression
from fedframe.methods.parts.teacher import load_teacher, teacher


@dataclass(frozen=True)
class FedDrPlus(DotRegression):
    """Dot regression of weight beta and feature distillation of weight 1 - beta; needs a frozen classifier."""

    name: ClassVar[str] = "feddr_plus"
    compares_with_server: ClassVar[bool] = True
    paper: ClassVar[str] = "Kim et al., FedDr+: Stabilizing Dot-regression with Global Feature Distillation, 2024"

    beta: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of the dot regression; 1 means no distillation."""

    def begin(self, context: ClientContext) -> None:
        """Keep the server's model."""
        if context.training and self.beta < 1:
            load_teacher(context)

    def loss(self, logits: Tensor, labels: Tensor, context: ClientContext) -> Tensor:
        """beta L_DR in rounds, L_DR after them."""
        return (self.beta if context.training else 1) * super().loss(logits, labels, context)

    def penalty(self, context: ClientContext) -> Tensor:
        """(1 - beta) L_FD."""
        if self.beta == 1:
            return context.embedding.new_zeros(())
        with torch.no_grad():
            shared = context.job.method.embed(teacher(context), context.inputs)
        return (1 - self.beta) * F.mse_loss(context.embedding, shared)
