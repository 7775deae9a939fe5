"""What a client minimises where no class is learned: the squared error of numbers, and cross-entropy label by label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from fedframe.core import ClientContext, Part
from fedframe.data.target import Task


@dataclass(frozen=True)
class SquaredDistance(Part):
    """Mean squared error of numbers, each in standard deviations of the target; mean over targets and batch."""

    name: ClassVar[str] = "squared_error"
    tasks: ClassVar[tuple[Task, ...] | None] = ("regression",)

    def loss(self, logits: Tensor, labels: Tensor, context: ClientContext) -> Tensor:
        """1/T ||output - target||^2."""
        return F.mse_loss(logits, labels)

    def probabilities(self, logits: Tensor) -> Tensor:
        """The numbers themselves, in the scale in which they are learned."""
        return logits

    def row_losses(self, logits: Tensor, labels: Tensor, contexts: Sequence[ClientContext]) -> Tensor:
        """The same for every sample of a stack of clients."""
        return (logits - labels).square().mean(-1)


@dataclass(frozen=True)
class BinaryCrossEntropy(Part):
    """Cross-entropy of having a label or not, through a sigmoid; mean over labels and batch."""

    name: ClassVar[str] = "binary_ce"
    tasks: ClassVar[tuple[Task, ...] | None] = ("multilabel",)

    def loss(self, logits: Tensor, labels: Tensor, context: ClientContext) -> Tensor:
        """-y log s(x) - (1 - y) log(1 - s(x)), mean over labels."""
        return F.binary_cross_entropy_with_logits(logits, labels)

    def probabilities(self, logits: Tensor) -> Tensor:
        """The sigmoid of each; labels do not exclude each other, so that they do not sum to 1."""
        return logits.sigmoid()

    def row_losses(self, logits: Tensor, labels: Tensor, contexts: Sequence[ClientContext]) -> Tensor:
        """The same for every sample of a stack of clients."""
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(-1)
