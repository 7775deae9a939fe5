"""FedLC: logits are calibrated by how many samples a client has of each class, so that rare classes get a margin.

Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration, ICML 2022. With n_c samples of
class c on the client, the logits l_c enter the softmax as l_c - tau n_c^(-1/4):
    -log exp(l_y - tau n_y^(-1/4)) / sum_c exp(l_c - tau n_c^(-1/4))
A class that the client lacks has an infinite margin: it leaves the softmax, and its vector is not pushed away.
tau = 0 is cross-entropy over all classes.

Differs from the paper in: the paper, as public re-implementations quote it, sums over c != y only, which has no lower
bound; like them, this is the softmax over all c. The paper's tau could not be found, the default is that of Flower's
baseline. `missing = one` counts a class that the client lacks as if it had one sample. The client stage has plain
cross-entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Key, Part
from fedframe.methods.parts.cross_entropy import CrossEntropy

MARGINS = Key[Tensor]("fedlc/margins")  # tau n_c^(-1/4) by class


@dataclass(frozen=True)
class FedLC(Part):
    """Cross-entropy of logits less a margin that is larger for classes of fewer samples."""

    name: ClassVar[str] = "fedlc"
    paper: ClassVar[str] = "Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration, 2022"

    tau: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.5
    """Strength of the margin; 0 is plain cross-entropy."""
    missing: Literal["mask", "one"] = "mask"  # a class the client lacks: out of the softmax (n = 0), or counted once
    """A class that the client lacks: `mask` takes it out of the softmax, `one` counts it as one sample."""

    def begin(self, context: ClientContext) -> None:
        """Compute the margin of every class."""
        if context.training and self.tau:  # without tau no class is left out
            counts = context.class_counts.to(context.start.device, context.start.dtype)
            context.scratch[MARGINS] = self.tau * (counts if self.missing == "mask" else counts.clamp_min(1)).pow(-0.25)

    def loss(self, logits: Tensor, labels: Tensor, context: ClientContext) -> Tensor:
        """The calibrated softmax in rounds, the plain one after them."""
        return F.cross_entropy(logits - context.scratch[MARGINS] if MARGINS in context.scratch else logits, labels)

    def row_losses(self, logits: Tensor, labels: Tensor, contexts: Sequence[ClientContext]) -> Tensor:
        """Cross-entropy for every sample of a stack of clients."""
        return CrossEntropy().row_losses(logits, labels, contexts)

    def round_losses(self, logits: Tensor, labels: Tensor, contexts: Sequence[ClientContext]) -> Tensor:
        """The calibrated softmax, for every sample of a stack of clients."""
        if all(MARGINS in context.scratch for context in contexts):
            logits = logits - torch.stack([context.scratch[MARGINS] for context in contexts])[:, None]
        return CrossEntropy().row_losses(logits, labels, contexts)
