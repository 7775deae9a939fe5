"""Bucketing: before a robust merge updates are averaged in small groups that are drawn at random.

Karimireddy, He and Jaggi, Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR 2022. A random
order pi of the n updates is cut into buckets of s:
    y_i = the mean of u_pi(s (i-1) + 1), ..., u_pi(min(s i, n))
The means lie closer together than the updates, by a factor of s in their variance, so that a robust rule throws fewer
honest ones away. A bad client spoils one bucket: f of them are s times the share among the buckets, and s is to stay
so small that this is less than half.

Differs from the paper in: there clients send momentum of their gradients; here the change of their model after local
training. Within a bucket clients weigh as they do in the mean (`weighting`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from pydantic import Field

from fedframe.core import Method, Part, RunningMean, Server, WeightedReply
from fedframe.errors import SettingError
from fedframe.methods.parts.robust import RobustMerge

if TYPE_CHECKING:
    from fedframe.core.job import Job


@dataclass(frozen=True)
class Bucketing(Part):
    """Replaces single updates by the means of random groups."""

    name: ClassVar[str] = "bucketing"
    rank: ClassVar[int] = 71  # after updates are clipped, or mixed otherwise
    paper: ClassVar[str] = "Karimireddy et al., Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, 2022"

    size: Annotated[int, Field(ge=1)] = 2  # s
    """How many updates are averaged in a bucket, s."""

    def check_method(self, method: Method) -> None:
        """Refuse merges for which the means of buckets are no better than the updates."""
        merge = method.slot("merge")
        if not isinstance(merge, RobustMerge):
            raise SettingError(
                f"{method.name!r} cannot be combined: 'bucketing' prepares updates for a robust merge, and "
                f"{merge.name!r} is none; add one, such as krum, median or centred_clipping, or leave it out."
            )

    def before_merge(self, server: Server, replies: Sequence[WeightedReply]) -> Sequence[WeightedReply]:
        """The buckets of a round."""
        order = torch.randperm(len(replies), generator=server.generator("bucketing")).tolist()
        buckets = [order[start : start + self.size] for start in range(0, len(order), self.size)]
        return [bucket_mean([replies[index] for index in bucket]) for bucket in buckets]

    def furthest(self, longest: Mapping[str, float], round: int, job: Job) -> Mapping[str, float] | None:
        """Means of updates are no longer than they."""
        return {}


def bucket_mean(bucket: Sequence[WeightedReply]) -> WeightedReply:
    """One reply that stands for several clients."""
    first = bucket[0][0]
    if len(bucket) == 1:
        return bucket[0]
    mean = RunningMean(len(first.tensors["update"]))
    for reply, weight in bucket:
        mean.add(reply.tensors["update"], weight)
    clients = sum(int(reply.numbers.get("clients", 1)) for reply, _ in bucket)
    reply = replace(first, tensors={"update": mean.mean().float()}, numbers={**first.numbers, "clients": clients})
    return reply, mean.weight
