"""FedRS: a client leaves the classifier's vectors of classes it does not have (almost) alone.

Li, Zhan: FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data, KDD 2021. In local
training the logits l_c = w_c' h enter the softmax as a_c l_c, with a_c = 1 for classes that the client has and
a_c = alpha for the others:
    -log exp(l_y) / sum_c exp(a_c l_c)
The gradient that pushes the vector of a missing class away is thereby alpha times as large. alpha = 1 is cross-entropy.

Differs from the paper in: the logits are scaled as they are, with the classifier's bias, which the paper's has not. The
restriction counts in rounds; the client stage has plain cross-entropy, because a personal model has no use for classes
that the client lacks. (The authors' code also scales classes that a client has few samples of; the paper's formula does
not.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Key, Part
from fedframe.methods.parts.cross_entropy import CrossEntropy

SCALES = Key[Tensor]("fedrs/scales")  # a_c by class


@dataclass(frozen=True)
class FedRS(Part):
    """Cross-entropy with the logits of missing classes scaled by alpha."""

    name: ClassVar[str] = "fedrs"
    paper: ClassVar[str] = "Li, Zhan: FedRS: Federated Learning with Restricted Softmax, KDD 2021"

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Scale of the logits of missing classes, from 0 to 1; 1 is plain cross-entropy."""

    def begin(self, context: ClientContext) -> None:
        """Compute a_c for every class."""
        if context.training:
            has = (context.class_counts > 0).to(context.start.device, context.start.dtype)
            context.scratch[SCALES] = has + (1 - has) * self.alpha

    def loss(self, logits: Tensor, labels: Tensor, context: ClientContext) -> Tensor:
        """The restricted softmax in rounds, the plain one after them."""
        return F.cross_entropy(logits * context.scratch[SCALES] if context.training else logits, labels)

    def row_losses(self, logits: Tensor, labels: Tensor, contexts: Sequence[ClientContext]) -> Tensor:
        """Cross-entropy for every sample of a stack of clients."""
        return CrossEntropy().row_losses(logits, labels, contexts)

    def round_losses(self, logits: Tensor, labels: Tensor, contexts: Sequence[ClientContext]) -> Tensor:
        """The restricted softmax, for every sample of a stack of clients."""
        scales = torch.stack([context.scratch[SCALES] for context in contexts])
        return CrossEntropy().row_losses(logits * scales[:, None], labels, contexts)
