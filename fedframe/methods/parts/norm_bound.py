"""Norm bound: no update is longer than a multiple of the round's median.

Sun et al., Can You Really Backdoor Federated Learning?, 2019 (norm thresholding):
    u_k <- u_k min(1, M / |u_k|),             M = factor * median_k |u_k|
A boosted update loses its boost; its direction stays. It changes updates before they are merged, and so it goes with
any merge.

Differs from the paper in: there M is a number, which must be tuned to the task; here it follows the updates. Norms are
those of the trainable weights; buffers, where there are any, move by the same factor less far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from fedframe.core import Part, Server, WeightedReply

if TYPE_CHECKING:
    from fedframe.core.job import Job


@dataclass(frozen=True)
class NormBound(Part):
    """Clips updates to a multiple of their median norm."""

    name: ClassVar[str] = "norm_bound"
    rank: ClassVar[int] = 60  # acts on what clients send, before updates are mixed
    paper: ClassVar[str] = "Sun et al., Can You Really Backdoor Federated Learning?, 2019"

    factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """The longest update that is left as it is, in median norms."""

    def before_merge(self, server: Server, replies: Sequence[WeightedReply]) -> Sequence[WeightedReply]:
        """Clip what is too long."""
        norms = [float(reply.tensors["update"][: server.layout.trainable].double().norm()) for reply, _ in replies]
        bound = self.factor * median(norms)
        server.figures |= {"norm_bound/bound": bound, "norm_bound/clipped": sum(norm > bound for norm in norms)}
        kept: list[WeightedReply] = []
        for (reply, weight), norm in zip(replies, norms, strict=True):
            if norm > bound:
                update = reply.tensors["update"].double() * (bound / norm)
                reply = replace(reply, tensors={**reply.tensors, "update": update.float()})
            kept.append((reply, weight))
        return kept

    def furthest(self, longest: Mapping[str, float], round: int, job: Job) -> Mapping[str, float] | None:
        """Updates become shorter."""
        return {}
