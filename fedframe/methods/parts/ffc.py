"""FFC, the fast federated calibration of SphereFed: the classifier of least squares, fitted once after the last round.

Dong et al., SphereFed: Hyperspherical Federated Learning, ECCV 2022, Eq. 7 to 10. Each client sends V_k = sum z z' and
U_k = sum z onehot'; the server solves (sum V_k) W = sum U_k. The sums over clients are those over the pooled data, so
the result is the ridged least-squares classifier of the pooled data on any split of them, and it works where only sums
may be seen (secure aggregation). V_k is symmetric: its lower triangle is sent, l (l + 1) / 2 of l^2 numbers.

It is the plainest case of `analytic`, by the same sums and the same solution: of a net's features as they are, without
a constant and without a choice of the ridge.

Differs from the paper in: float64 throughout; a ridge of 1e-6 tr(V)/dim, because with features that are always zero
(dead units) V has no inverse.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Message, ModelSize, Part, Server, Upload
from fedframe.methods.closed_form.ridge import solve_ridge
from fedframe.methods.closed_form.sums import stream_sums
from fedframe.util.triangles import triangle_size, unpack


@dataclass(frozen=True)
class FFC(Part):
    """A least-squares classifier from sums over all clients."""

    name: ClassVar[str] = "ffc"
    paper: ClassVar[str] = "Dong et al., SphereFed: Hyperspherical Federated Learning, ECCV 2022"

    ridge: Annotated[float, Field(ge=0)] = 1e-6
    """Added to the diagonal of the second moments, in units of their mean."""

    def statistics(self, context: ClientContext) -> dict[str, Tensor]:
        """V_k and U_k from features in evaluation mode."""
        dim, classes = context.model.dim, context.model.classes
        labels, several = context.job.federation.source.train.y[context.rows], context.job.settings.eval_batch
        pieces = zip(context.embeddings().split(several), labels.split(several), strict=True)  # type: ignore[no-untyped-call]
        sums = stream_sums(((z.double().cpu(), y) for z, y in pieces), dim, classes)  # Eq. 9
        # The constant that those sums have, too, comes last.
        return {"ffc/v": sums.second[: triangle_size(dim)].clone(), "ffc/u": sums.cross[:-1].clone()}

    def uploads(self, size: ModelSize) -> dict[str, Upload]:
        """The triangle of (dim, dim), and (dim, classes)."""
        return {
            "ffc/v": Upload([triangle_size(size.dim)], "sum", when="statistics"),
            "ffc/u": Upload([size.dim, size.classes], "sum", when="statistics"),
        }

    def server_stage(self, server: Server, replies: Iterable[Message]) -> None:
        """Sum, solve, and replace the classifier."""
        dim, classes = server.job.template.dim, server.job.template.classes
        v, u = (torch.zeros(*shape, dtype=torch.float64) for shape in ((triangle_size(dim),), (dim, classes)))
        received = 0
        for reply in replies:
            received += 1
            v += reply.tensors["ffc/v"]
            u += reply.tensors["ffc/u"]
        if not received:
            server.note("ffc: no client's sums could be used; the classifier stays as it is.")
            return
        server.set_tensor("head.weight", least_squares(unpack(v, dim), u, self.ridge).T)  # Eq. 10
        if "head.bias" in dict(server.job.template.named_parameters()):
            server.set_tensor("head.bias", torch.zeros(classes))


def least_squares(v: Tensor, u: Tensor, ridge: float) -> Tensor:
    """W with (V + ridge tr(V)/dim I) W = U; V must be symmetric to the last bit."""
    return solve_ridge(v, u, float((ridge * v.diagonal().mean()).clamp_min(1e-300)))
