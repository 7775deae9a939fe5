"""FedSAM: each local step uses the gradient at a point a little uphill, so that clients look for flat minima.

Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022, Algorithm 1:
    w~ = w + rho g / ||g||,  g = grad F(w);   w <- w - lr grad F(w~)

Differs from the paper in: corrections of other parts (SCAFFOLD's, FedProx's) count in both gradients.
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
    """Steps along the gradient at the highest point within rho of the weights."""

    name: ClassVar[str] = "fedsam"
    paper: ClassVar[str] = "Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022"

    rho: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.05

    def step(self, context: ClientContext) -> Tensor:
        """Climb, take the gradient there, come back, step; the loss is that at the weights themselves."""
        loss = context.compute_gradient()
        uphill = {name: weight.grad.clone() for name, weight in context.named.items() if weight.grad is not None}
        norm = torch.stack([gradient.norm() for gradient in uphill.values()]).norm()
        if self.rho and float(norm) > 0:  # a gradient of zero has no uphill
            before = {name: context.named[name].detach().clone() for name in uphill}
            with torch.no_grad():
                for name, gradient in uphill.items():
                    context.named[name].add_(gradient * (self.rho / norm))  # w~
            context.compute_gradient()
            with torch.no_grad():
                for name, weight in before.items():
                    context.named[name].copy_(weight)
        context.apply_gradient()
        return loss
