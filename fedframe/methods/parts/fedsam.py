"""FedSAM: each local step uses the gradient at a point a little uphill, so that clients look for flat minima.

Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022, Algorithm 1, on one batch:
    w~ = w + rho g / ||g||,  g = grad F(w);   w <- w - lr grad F(w~)

Differs from the paper in: updates are averaged by the run's weights, with a server learning rate of 1. Corrections of
other parts (SCAFFOLD's, FedProx's) count in both gradients, and both passes in BatchNorm's running statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Part


@dataclass(frozen=True)
class FedSAM(Part):
    """Steps along the gradient at the highest point within rho of the weights, to first order; rho = 0 is FedAvg."""

    name: ClassVar[str] = "fedsam"
    paper: ClassVar[str] = "Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022"

    rho: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.05
    """How far a local step climbs before it takes the gradient; 0 is FedAvg."""

    def step(self, context: ClientContext) -> Tensor:
        """Climb, compute the gradient there, return, and step; the loss is that at the weights themselves."""
        loss = context.compute_gradient()
        trained = [(weight, weight.grad) for weight in context.named.values() if weight.grad is not None]
        norm = float(torch.stack([gradient.norm() for _, gradient in trained]).norm())
        if self.rho and norm > 0:  # a gradient of zero has no uphill direction
            before = [weight.detach().clone() for weight, _ in trained]
            for weight, gradient in trained:
                weight.data.add_(gradient, alpha=self.rho / norm)  # Algorithm 1: w~
            context.compute_gradient()  # Algorithm 1: grad F(w~)
            for (weight, _), old in zip(trained, before, strict=True):
                weight.data.copy_(old)
        context.apply_gradient()
        return loss
