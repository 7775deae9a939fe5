"""Fed-RoD's personal head: on top of the shared classifier, each client learns one of its own.

Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR 2022, Eq. 5 to 7,
Algorithm 1. With z the feature, psi the generic head and phi_k the client's own:
    generic    theta, psi   minimise   balanced softmax of psi z         (the part `balanced_ce`), are averaged
    personal   phi_k        minimises  CE(psi z + phi_k z)               z and psi z without a gradient, stays
The shared model predicts with psi z; a client with psi z + phi_k z. phi is zero in the beginning and in the shared
model, so that one formula holds for both. Without the balanced loss the generic side is FedAvg's, bit for bit.

Differs from the paper in: phi_k is a linear layer that starts at zero; the variant whose phi_k comes from a network fed
with the client's label counts is not implemented.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedframe.core import ClientContext, Method, Model, Part
from fedframe.errors import SettingError


class OwnHead(nn.Module):
    """A linear layer of zeros; drawing nothing, it leaves the rest of the model as it would be without it."""

    def __init__(self, classes: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(classes, dim))
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, features: Tensor) -> Tensor:
        """Logits phi z."""
        return F.linear(features, self.weight, self.bias)


@dataclass(frozen=True)
class FedRoD(Part):
    """A private classifier whose logits are added to the shared one's, trained with plain cross-entropy."""

    name: ClassVar[str] = "fedrod"
    paper: ClassVar[str] = (
        "Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR 2022"
    )
    rank: ClassVar[int] = 20  # built for the features that all transforms leave

    def check_method(self, method: Method) -> None:
        """Refuse parts that replace the rounds' classifier, for which phi_k is trained."""
        others = [part for part in method.parts_with("predict") if part is not self]
        stage = method.optional_slot("server_stage")
        for other in (*others, *([stage] if stage else [])):
            raise SettingError(
                f"{method.name!r} cannot be combined: 'fedrod' adds to the logits of the rounds' classifier, in whose "
                f"place {other.name!r} puts another; leave one of them out."
            )

    def build(self, model: Model) -> None:
        """Add phi."""
        model.extras["fedrod"] = OwnHead(model.classes, model.dim)

    def private(self, model: Model) -> Collection[str]:
        """phi_k stays on the client."""
        return ("extras.fedrod.weight", "extras.fedrod.bias")

    def penalty(self, context: ClientContext) -> Tensor:
        """The personal loss."""
        own: Tensor = context.model.extras["fedrod"](context.embedding.detach())
        return F.cross_entropy(context.logits.detach() + own, context.labels)  # Eq. 7

    def predict(self, model: Model, features: Tensor) -> Tensor:
        """Predict with psi z + phi z."""
        logits: Tensor = model.head(features) + model.extras["fedrod"](features)
        return logits
