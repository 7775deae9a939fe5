"""Cross-entropy of the logits: the loss that a client minimises unless a method says otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch.nn.functional as F
from torch import Tensor

from fedframe.core.part import Part, Slot

if TYPE_CHECKING:
    from fedframe.core.work import Work


@dataclass(frozen=True)
class CrossEntropy(Part):
    """Mean cross-entropy over the batch."""

    name: ClassVar[str] = "ce"
    claims: ClassVar[frozenset[Slot]] = frozenset({"loss"})

    def loss(self, logits: Tensor, labels: Tensor, work: Work) -> Tensor:
        """-log softmax(logits)[label]."""
        return F.cross_entropy(logits, labels)
