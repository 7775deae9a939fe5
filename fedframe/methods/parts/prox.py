"""FedProx's proximal term: a client pays for moving away from the server's model.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, Eq. 2: F_k(w) + mu/2 ||w - w_t||^2.
Its gradient mu (w - w_t) is added to the batch's gradient in every step, the first included (where it is zero).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Key, Part

ANCHOR = Key[dict[str, Tensor]]("prox/anchor")  # w_t by name


@dataclass(frozen=True)
class Prox(Part):
    """A pull towards the server's weights, of strength mu."""

    name: ClassVar[str] = "prox"
    compares_with_server: ClassVar[bool] = True
    paper: ClassVar[str] = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"

    mu: Annotated[float, Field(ge=0)] = 0.01
    """Strength of the pull towards the server's model, mu; 0 is FedAvg."""

    def begin(self, context: ClientContext) -> None:
        """Keep the server's weights by name."""
        context.pull = self.mu
        context.scratch[ANCHOR] = context.job.roles.layout.views(context.start)

    def correct(self, context: ClientContext) -> None:
        """g <- g + mu (w - w_t)."""
        anchor = context.scratch[ANCHOR]
        for name, weight in context.named.items():
            if self.mu and weight.grad is not None and name in anchor:  # what is private has no anchor
                weight.grad.add_(weight.detach() - anchor[name], alpha=self.mu)  # Eq. 2
