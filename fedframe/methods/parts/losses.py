"""What a client minimises, beside cross-entropy: squared error (SphereFed) and balanced cross-entropy (FedETF)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Key, Part

PRIOR = Key[Tensor]("balanced_ce/prior")  # gamma log n_k by class


@dataclass(frozen=True)
class SquaredError(Part):
    """1/C ||W z - onehot||^2, mean over the batch (SphereFed, Eq. 5)."""

    name: ClassVar[str] = "mse"

    def loss(self, logits: Tensor, labels: Tensor, context: ClientContext) -> Tensor:
        """The mean over classes makes its gradient 2/C of a plain squared norm: it wants a larger learning rate."""
        return F.mse_loss(logits, F.one_hot(labels, logits.shape[-1]).to(logits.dtype))  # SphereFed, Eq. 5

    def probabilities(self, logits: Tensor) -> Tensor:
        """Least squares fits probabilities themselves; what lies below 0 is cut off, and the rest made to sum to 1."""
        positive = logits.clamp_min(torch.finfo(logits.dtype).tiny)
        return positive / positive.sum(-1, keepdim=True)

    def row_losses(self, logits: Tensor, labels: Tensor, contexts: Sequence[ClientContext]) -> Tensor:
        """The same for every sample of a stack of clients."""
        return (logits - F.one_hot(labels, logits.shape[-1]).to(logits.dtype)).square().mean(-1)  # SphereFed, Eq. 5

    round_losses = row_losses


@dataclass(frozen=True)
class BalancedCrossEntropy(Part):
    """Cross-entropy of logits + gamma log n_k: the client's label counts are taken out of what it learns (FedETF)."""

    name: ClassVar[str] = "balanced_ce"
    paper: ClassVar[str] = "Li et al., No Fear of Classifier Biases, ICCV 2023"

    gamma: Annotated[float, Field(ge=0)] = 1.0
    """How much label counts matter; 0 is plain cross-entropy."""
    missing: Literal["mask", "one"] = "one"  # a class the client lacks: out of the softmax (n = 0), or counted once
    """A class that the client lacks: `mask` takes it out of the softmax, `one` counts it once."""

    def begin(self, context: ClientContext) -> None:
        """gamma log n_k for every class."""
        counts = context.class_counts.float()
        if self.missing == "one":
            counts = counts.clamp_min(1.0)
        # 0 log 0 is 0: without gamma the counts do not matter, also those of zero.
        prior = self.gamma * counts.log() if self.gamma else torch.zeros_like(counts)
        context.scratch[PRIOR] = prior.to(context.start.device)

    def loss(self, logits: Tensor, labels: Tensor, context: ClientContext) -> Tensor:
        """-log n_y^gamma exp(l_y) / sum_c n_c^gamma exp(l_c)."""
        return F.cross_entropy(logits + context.scratch[PRIOR], labels)

    def row_losses(self, logits: Tensor, labels: Tensor, contexts: Sequence[ClientContext]) -> Tensor:
        """The same for every sample of a stack of clients, each with its own counts."""
        logits = logits + torch.stack([context.scratch[PRIOR] for context in contexts])[:, None]
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)

    round_losses = row_losses
