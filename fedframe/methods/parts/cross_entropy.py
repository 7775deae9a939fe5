"""Cross-entropy of the logits: the loss that a client minimises unless a method says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from fedframe.core import ClientContext, Part


@dataclass(frozen=True)
class CrossEntropy(Part):
    """Mean cross-entropy over the batch."""

    name: ClassVar[str] = "ce"

    def loss(self, logits: Tensor, labels: Tensor, context: ClientContext) -> Tensor:
        """-log softmax(logits)[label]."""
        return F.cross_entropy(logits, labels)

    def row_losses(self, logits: Tensor, labels: Tensor, contexts: Sequence[ClientContext]) -> Tensor:
        """The same for every sample of a stack of clients."""
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)

    round_losses = row_losses
