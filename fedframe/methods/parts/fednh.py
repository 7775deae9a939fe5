"""FedNH: class prototypes on the sphere as classifier; the server turns them slowly towards the class means.

Dai et al., Tackling Data Heterogeneity in Federated Learning with Class Prototypes, AAAI 2023. The rows of W are unit
vectors that start spread out evenly and are fixed in local training, where logits = s W z with z = h / ||h|| and a
learned number s (the parts `normalise` and `temperature`). With m_k,c the normalised mean of z over the client's
samples of class c, under its final local model, and n_k,c their number, after every round
    m_c = normalise( sum_k n_k,c m_k,c ),       w_c <- normalise( rho w_c + (1 - rho) m_c )
so that classes that look alike may come to lie closer. A class that no client of the round has stays where it is.
rho = 1 never moves W: a frozen orthonormal classifier, bit for bit.

Differs from the paper in: it calls for the most even spread and its code takes orthonormal vectors, as here; `spread =
etf` has the largest angles that there are. s starts at 10 and not at 1 (see `temperature`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Model, ModelSize, Part, Server, Upload
from fedframe.methods.parts.frame_head import Orthonormal, SimplexETF

if TYPE_CHECKING:
    from fedframe.core.job import Job

HEAD = "head.weight"


@dataclass(frozen=True)
class FedNH(Part):
    """Unit class vectors that only the server moves, by smoothing with rho."""

    name: ClassVar[str] = "fednh"
    paper: ClassVar[str] = (
        "Dai et al., Tackling Data Heterogeneity in Federated Learning with Class Prototypes, AAAI 2023"
    )

    rho: Annotated[float, Field(ge=0, le=1)] = 0.9
    """How much of a prototype stays in a round; 1 freezes the prototypes."""
    spread: Literal["orthonormal", "etf"] = "orthonormal"
    """The even spread at first: `orthonormal`, or `etf` with the largest possible angles."""

    def build_head(self, model: Model) -> None:
        """Draw the class vectors."""
        (Orthonormal() if self.spread == "orthonormal" else SimplexETF()).build_head(model)

    def finish(self, context: ClientContext) -> None:
        """Send n_k,c m_k,c; features count in their full length if the method does not normalise them."""
        sums, counts = context.class_sums()
        context.reply["fednh/sums"] = counts[:, None] * F.normalize(sums, dim=1)

    def uploads(self, size: ModelSize) -> dict[str, Upload]:
        """A vector per class."""
        return {"fednh/sums": Upload([size.classes, size.dim], "sum")}

    def after_merge(self, server: Server, clients: int) -> None:
        """Turn the class vectors; clients get them with the next request."""
        if self.rho == 1:
            return
        old, total = server.tensor(HEAD).double(), server.total("fednh/sums")
        moved = F.normalize(self.rho * old + (1 - self.rho) * F.normalize(total, dim=1), dim=1)
        seen: Tensor = total.norm(dim=1, keepdim=True) > 0
        server.set_tensor(HEAD, torch.where(seen, moved, old).float())

    def furthest(self, longest: Mapping[str, float], round: int, job: Job) -> Mapping[str, float] | None:
        """Rows are unit vectors before and after."""
        return {f"fixed/{HEAD}": 2 * math.sqrt(job.template.classes)} if self.rho < 1 else {}
