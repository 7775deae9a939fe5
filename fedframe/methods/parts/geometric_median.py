"""RFA: the geometric median of the updates, by a few steps of the smoothed Weiszfeld algorithm.

Pillutla, Kakade and Harchaoui, Robust Aggregation for Federated Learning, IEEE Transactions on Signal Processing
2022. The geometric median minimises sum_k alpha_k |v - u_k|, with alpha_k the client's weight in the mean:
    beta_k = alpha_k / max(nu, |v - u_k|)
    v      = sum_k beta_k u_k / sum_k beta_k
An update far away pulls no harder than one nearby, so that half of the weight must be bad to move v at will.

Differs from the paper in: v starts at 0, the model as it stands. Distances come from inner products in float64; all
steps together read the updates twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedframe.core import Merger, Server
from fedframe.methods.parts.nash import combination, gram_matrix
from fedframe.methods.parts.robust import GatheringMerger, RobustMerge


@dataclass(frozen=True)
class GeometricMedian(RobustMerge):
    """The point with the smallest sum of distances to the updates, nearly; clients weigh as in the mean."""

    name: ClassVar[str] = "rfa"
    paper: ClassVar[str] = "Pillutla et al., Robust Aggregation for Federated Learning, IEEE TSP 2022"

    iterations: Annotated[int, Field(ge=1)] = 3  # R
    """Steps of the Weiszfeld algorithm."""
    nu: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-6  # distances below it count as so large
    """Smaller distances count as this one, so that nothing is divided by zero."""

    def merger(self, server: Server) -> Merger:
        """Keeps every update: memory grows with the clients of a round."""

        def rule(gathered: GatheringMerger) -> Tensor:
            alpha = torch.tensor(gathered.weights, dtype=torch.float64)
            shares = weiszfeld(gram_matrix(gathered.trainable()), alpha, self.nu, self.iterations)
            return combination(gathered.updates, shares)

        return GatheringMerger(server, rule)


def weiszfeld(gram: Tensor, alpha: Tensor, nu: float, iterations: int) -> Tensor:
    """The shares of the updates in v, from their inner products."""
    shares = torch.zeros_like(alpha)  # v = 0
    for _ in range(iterations):
        squares = shares @ gram @ shares - 2 * (gram @ shares) + gram.diagonal()
        beta = alpha / squares.clamp_min(0).sqrt().clamp_min(nu)  # beta_k
        shares = beta / beta.sum()  # of v
    return shares
