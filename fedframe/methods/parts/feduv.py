"""FedUV: a client's predictions vary as much, and its features spread as widely, as those on data of all classes would.

Son et al., FedUV: Uniformity and Variance for Heterogeneous Federated Learning, CVPR 2024. With the probabilities p and
the features z of a batch, lambda L_V + mu L_U is added to the loss:
    L_V = 1/C sum_c max(0, 1/sqrt(C) - std_i p_ic)
    L_U = mean over pairs i < j of exp(-||z_i - z_j||^2 / s),   s the median of all ||z_i - z_j||^2 that are not zero
1/sqrt(C) is the standard deviation of a column of one-hot labels, one of each class. A client that lacks a class
learns a constant probability for it; L_V is what that costs. lambda = mu = 0 is FedAvg.

Differs from the paper in: written from the authors' public code, whose s has a gradient as here (so that L_U does not
change with the length of the features). The features are those that reach the classifier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Part

TINY = 1e-12  # added to variances, so that the root of one that is zero has a gradient


@dataclass(frozen=True)
class FedUV(Part):
    """Penalties on classes whose probability hardly varies in a batch, and on features that lie close together."""

    name: ClassVar[str] = "feduv"
    paper: ClassVar[str] = "Son et al., FedUV: Uniformity and Variance for Heterogeneous Federated Learning, CVPR 2024"

    variance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.5  # lambda
    """Weight of the variance of probabilities, lambda."""
    uniformity: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.5  # mu
    """Weight of the uniformity of features, mu."""

    def penalty(self, context: ClientContext) -> Tensor:
        """lambda L_V + mu L_U; nothing for a single sample."""
        total = context.logits.new_zeros(())
        if len(context.labels) > 1 and self.variance:
            total = total + self.variance * lacking_variance(context.logits.softmax(1))
        if len(context.labels) > 1 and self.uniformity:
            total = total + self.uniformity * crowding(context.embedding)
        return total


def lacking_variance(probabilities: Tensor) -> Tensor:
    """L_V of (batch, classes)."""
    wanted = probabilities.shape[1] ** -0.5
    lacking: Tensor = wanted - (probabilities.var(0) + TINY).sqrt()
    return lacking.clamp_min(0).mean()


def crowding(features: Tensor) -> Tensor:
    """L_U of (batch, dim); nothing where all features are alike, which have no direction to go."""
    distances = torch.pdist(features).square()
    apart = distances[distances > 0]
    if not len(apart):
        return features.new_zeros(())
    return (-distances / apart.median()).exp().mean()
