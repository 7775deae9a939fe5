"""FedGELA: one frozen ETF for all, whose class vectors every client scales by how frequent the classes are with it.

Fan et al., Federated Learning with Bilateral Curation for Partially Class-Disjoint Data, NeurIPS 2023. With w_c the
vectors of a frozen simplex ETF and n_kc samples of class c on client k, the client trains with cross-entropy of
    l_c = phi_kc w_c' h,    phi_kc = C n_kc / n_k
The shared model predicts with the ETF itself; a client's own model with the ETF as it has scaled it. Where a client has
every class equally often, phi = 1. A class that it lacks has phi = 0: its logit is zero, and no feature is pushed away
from its place.

Differs from the paper in: features are put on the sphere and multiplied by 5 (the parts `normalise` and `temperature`;
the authors' code divides logits by 0.2 unless told otherwise, and normalises features by BatchNorm or by their length).
The client's own model is trained for `epochs` more under its scaled ETF.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Key, Method, Part
from fedframe.errors import SettingError
from fedframe.methods.parts.cross_entropy import CrossEntropy
from fedframe.methods.parts.linear_head import LinearHead

SCALES = Key[Tensor]("fedgela/scales")  # phi_kc by class


@dataclass(frozen=True)
class FedGELA(Part):
    """Cross-entropy with class vectors scaled by the client's class frequencies, in rounds and in its own model."""

    name: ClassVar[str] = "fedgela"
    paper: ClassVar[str] = "Fan et al., Bilateral Curation for Partially Class-Disjoint Data, NeurIPS 2023"

    epochs: Annotated[int, Field(ge=0)] = 5  # of training the client's own model
    """Epochs of training a client's own model after the rounds."""

    def check_method(self, method: Method) -> None:
        """Refuse classifiers that learn, and a second one that predicts: the scales are those of frozen vectors."""
        if isinstance(method.slot("head"), LinearHead):
            raise SettingError(
                f"{method.name!r} cannot be combined: 'fedgela' scales the vectors of a frozen classifier, and "
                "'linear' learns; add a frozen one, such as etf."
            )
        for other in method.parts_with("predict"):
            raise SettingError(
                f"{method.name!r} cannot be combined: {other.name!r} predicts with a classifier of its own, and "
                "'fedgela' scales another; leave one of them out."
            )

    def begin(self, context: ClientContext) -> None:
        """Compute phi_kc for every class."""
        counts = context.class_counts.to(context.start.device, context.start.dtype)
        context.scratch[SCALES] = len(counts) * counts / counts.sum()

    def loss(self, logits: Tensor, labels: Tensor, context: ClientContext) -> Tensor:
        """Cross-entropy of phi_kc l_c; in the client stage the head itself is scaled."""
        return F.cross_entropy(logits * context.scratch[SCALES] if context.training else logits, labels)

    def row_losses(self, logits: Tensor, labels: Tensor, contexts: Sequence[ClientContext]) -> Tensor:
        """Cross-entropy for every sample of a stack of clients."""
        return CrossEntropy().row_losses(logits, labels, contexts)

    def round_losses(self, logits: Tensor, labels: Tensor, contexts: Sequence[ClientContext]) -> Tensor:
        """Cross-entropy of phi_kc l_c, for every sample of a stack of clients."""
        scales = torch.stack([context.scratch[SCALES] for context in contexts])
        return CrossEntropy().row_losses(logits * scales[:, None], labels, contexts)

    def personalise(self, context: ClientContext) -> None:
        """Scale the head, and train the rest under it."""
        with torch.no_grad():
            for tensor in context.model.head.parameters():
                tensor.mul_(context.scratch[SCALES].view(-1, *[1] * (tensor.dim() - 1)))
        context.fit(self.epochs)
