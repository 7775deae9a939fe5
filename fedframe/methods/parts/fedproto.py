"""FedProto: clients share where their classes lie in feature space, and nothing of their models.

Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022. A client's prototype of a
class j is the mean feature of its samples of it; the server's is the mean of the clients', weighted by samples:
    C_k,j = mean_{i in D_k,j} f_k(x_i),        C_j = sum_k |D_k,j| / N_j C_k,j        (Eq. 3, 6)
    l     = CE + lambda mean_i ||f_k(x_i) - C_{y_i}||^2 / dim                         (Eq. 7)
Prototypes are taken with the final local model, in a pass of its own over all of the client's data. The whole model
stays on the client, so there is no generic score. A client predicts with its own classifier or, with `predict_by =
prototypes`, the class of the nearest prototype (Eq. 4). A class that no client of a round has keeps its prototype;
before it has one, the penalty leaves it alone.

Differs from the paper in: Eq. 6 as printed divides by the number of clients once more, which would shrink prototypes;
its appendix has weights that sum to one, as here. Eq. 8 compares class means; the authors' code and the appendix
compare single features, as here, and the code divides by the dimension. All clients have the same net.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedframe.core import ClientContext, Method, Model, ModelSize, Part, Server, Upload
from fedframe.errors import SettingError
from fedframe.methods.parts.alone import Local, needing_shared_weights

if TYPE_CHECKING:
    from fedframe.core.job import Job

PLACE = "extras.fedproto."


class Prototypes(nn.Module):
    """A vector per class, and for which classes there is one; set by the server."""

    def __init__(self, classes: int, dim: int) -> None:
        super().__init__()
        self.means = nn.Parameter(torch.zeros(classes, dim), requires_grad=False)
        self.known = nn.Parameter(torch.zeros(classes), requires_grad=False)


@dataclass(frozen=True)
class FedProto(Part):
    """Private models, tied together by shared class prototypes."""

    name: ClassVar[str] = "fedproto"
    paper: ClassVar[str] = "Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022"
    rank: ClassVar[int] = 20  # built for the features that all transforms leave
    shares_a_model = False

    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0  # lambda
    """Weight of the distance from the prototypes, lambda; 0 trains every client alone."""
    predict_by: Literal["head", "prototypes"] = "head"
    """What predicts: `head`, the client's classifier, or `prototypes`, the nearest prototype."""

    def check_method(self, method: Method) -> None:
        """Refuse parts that work on shared weights: there are none."""
        for other in needing_shared_weights(method):
            raise SettingError(
                f"{method.name!r} cannot be combined: 'fedproto' shares no weights, so that {other.name!r} would have "
                "nothing to work with; leave one of them out."
            )

    def build(self, model: Model) -> None:
        """Add prototypes, none of them known yet."""
        model.extras["fedproto"] = Prototypes(model.classes, model.dim)

    def private(self, model: Model) -> Collection[str]:
        """Everything but the prototypes and other frozen vectors."""
        return Local().private(model)

    def penalty(self, context: ClientContext) -> Tensor:
        """lambda times the mean squared distance from the prototypes."""
        own = prototypes(context.model)
        if not self.weight:
            return context.embedding.new_zeros(())
        distance = (context.embedding - own.means[context.labels]).square().mean(1)
        return self.weight * (distance * own.known[context.labels]).mean()  # Eq. 7

    def predict(self, model: Model, features: Tensor) -> Tensor:
        """The client's classifier, or minus the distance from every prototype that there is."""
        if self.predict_by == "head":
            logits: Tensor = model.head(features)
            return logits
        own = prototypes(model)
        distance = torch.cdist(features, own.means)
        return -distance.masked_fill(own.known == 0, torch.inf)  # Eq. 4

    def finish(self, context: ClientContext) -> None:
        """Send the client's prototypes, zero for classes that it lacks, and its label counts."""
        sums, counts = context.class_sums()
        context.reply |= {"fedproto/means": sums / counts.clamp_min(1)[:, None], "fedproto/counts": counts}  # Eq. 3

    def uploads(self, size: ModelSize) -> dict[str, Upload]:
        """A prototype and a count per class; prototypes are weighted by the counts, class by class."""
        return {
            "fedproto/means": Upload([size.classes, size.dim], "each"),
            "fedproto/counts": Upload([size.classes], "each"),
        }

    def after_merge(self, server: Server, clients: int) -> None:
        """Set new prototypes for the classes that some client had; clients receive them with the next request."""
        total, seen = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for means, counts in zip(server.each("fedproto/means"), server.each("fedproto/counts"), strict=True):
            total = total + counts.double()[:, None] * means  # |D_k,j| C_k,j
            seen = seen + counts.double()
        fresh = (total / seen.clamp_min(1)[:, None]).float()  # Eq. 6
        old, known = server.tensor(f"{PLACE}means"), server.tensor(f"{PLACE}known")
        server.set_tensor(f"{PLACE}means", torch.where(seen[:, None] > 0, fresh, old))
        server.set_tensor(f"{PLACE}known", torch.maximum(known, (seen > 0).float()))

    def furthest(self, longest: Mapping[str, float], round: int, job: Job) -> Mapping[str, float] | None:
        """Prototypes are where clients' features are, which can be anywhere."""
        return {f"fixed/{PLACE}means": math.inf, f"fixed/{PLACE}known": math.inf}


def prototypes(model: Model) -> Prototypes:
    """The prototypes in a model."""
    found = model.extras["fedproto"]
    assert isinstance(found, Prototypes)
    return found
