"""FedAwS: after every round the server turns class vectors that lie too close together away from each other.

Yu et al., Federated Learning with Only Positive Labels, ICML 2020. With u_c = w_c / ||w_c|| and the cosine distance
d(u, v) = 1 - u'v, the server takes one step of size lambda eta (eta the round's local learning rate) down
    reg(W) = sum_c sum_{c' in N_k(c)} max(0, nu - d(u_c, u_c'))^2
N_k(c) are the k classes nearest to c: the paper's mining of hard negatives for many classes. nu = 1 asks for vectors
that are at least orthogonal. Clients that see one class each would otherwise let all class vectors collapse.

Differs from the paper in: clients train as the method says, with cross-entropy and all class vectors, where
the paper's have one class and only its own vector. The classifier's vectors are not kept at length 1: the step turns
them (the gradient is that of the directions) and leaves their lengths and the bias alone. The paper mines without a
margin, among a random subset of the classes; here both count, among all of them. lambda is small: a step of
lambda eta = 1 overshoots, and class vectors are nearer after it than before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedframe.core import Method, Part, Server
from fedframe.data.target import Task
from fedframe.errors import SettingError
from fedframe.methods.parts.linear_head import LinearHead

HEAD = "head.weight"


@dataclass(frozen=True)
class FedAwS(Part):
    """A spread-out step over the rows of the learned, shared classifier."""

    name: ClassVar[str] = "fedaws"
    tasks: ClassVar[tuple[Task, ...] | None] = ("classification",)
    paper: ClassVar[str] = "Yu, Rawat, Menon, Kumar: Federated Learning with Only Positive Labels, ICML 2020"

    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0  # lambda
    """Size of the server's spreading step in units of the local learning rate, lambda; 0 is FedAvg."""
    margin: Annotated[float, Field(gt=0, le=2)] = 1.0  # nu
    """Distance up to which class vectors are pushed apart, nu; above 0, at most 2."""
    nearest: Annotated[int, Field(ge=1)] = 10  # k
    """How many of the nearest classes count for each class, k."""

    def check_method(self, method: Method) -> None:
        """Refuse methods without learned class vectors on the server."""
        head = method.slot("head")
        if not isinstance(head, LinearHead):
            raise SettingError(
                f"{method.name!r} cannot be combined: 'fedaws' moves the class vectors of a learned classifier, and "
                f"those of {head.name!r} are fixed; leave one of them out."
            )
        if not method.shares_a_model:
            raise SettingError(
                f"{method.name!r} cannot be combined: 'fedaws' moves class vectors of a shared model, and here a part "
                "of it stays on the clients; leave it out."
            )

    def after_merge(self, server: Server, clients: int) -> None:
        """Take one step, and record the distance of the two nearest classes."""
        if not self.weight:
            return
        spread = spread_out(server.tensor(HEAD).double(), self.weight * server.lr, self.margin, self.nearest)
        server.set_tensor(HEAD, spread.float())
        u = F.normalize(spread, dim=1)
        server.figures["fedaws/nearest"] = float(1 - (u @ u.T).fill_diagonal_(-1).max())


def spread_out(weight: Tensor, step: float, margin: float, nearest: int) -> Tensor:
    """The class vectors (classes, dim) after one step; each keeps its length."""
    length: Tensor = weight.norm(dim=1, keepdim=True)
    u = F.normalize(weight, dim=1).requires_grad_()
    with torch.enable_grad():
        unit = F.normalize(u, dim=1)  # so that the gradient turns a vector and does not lengthen it
        distance = 1 - unit @ unit.T
        others = distance.fill_diagonal_(torch.inf)
        near = others.topk(min(nearest, len(u) - 1), dim=1, largest=False).values
        loss = (margin - near).clamp_min(0).square().sum()
    (gradient,) = torch.autograd.grad(loss, u)
    return length * F.normalize((u - step * gradient).detach(), dim=1)
