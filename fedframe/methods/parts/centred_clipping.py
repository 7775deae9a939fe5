"""Centred clipping: updates are clipped around the last step before they are averaged.

Karimireddy, He and Jaggi, Learning from History for Byzantine Robust Optimization, ICML 2021. From the last
round's step v on, one or several times:
    v <- v + 1/n sum_k (u_k - v) min(1, tau / |u_k - v|)
No client moves the step by more than tau / n from where the last one was, and what it does must be kept up for many
rounds to add up.

Differs from the paper in: there clients send momentum of their gradients, which changes little from round to round;
here the change of their model after local training. tau is a number there, tuned to the task; by default it is here the
median of the distances |u_k - v|, so that it needs no tuning and half of the updates enter whole. Buffers, where there
are any, are clipped with the same factors around their last values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedframe.core import Merger, Server, State
from fedframe.methods.parts.robust import GatheringMerger, RobustMerge

CENTRE = "centred_clipping/centre"


@dataclass(frozen=True)
class CentredClipping(RobustMerge):
    """The mean of what is left of the updates within tau of the last step; clients count alike."""

    name: ClassVar[str] = "centred_clipping"
    paper: ClassVar[str] = "Karimireddy et al., Learning from History for Byzantine Robust Optimization, ICML 2021"

    tau: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # by default the median distance
    """The most by which an update may differ from the last step; empty means the median distance."""
    iterations: Annotated[int, Field(ge=1)] = 1  # L
    """How often clipping is repeated in a round."""

    def server_state(self, server: Server) -> dict[str, State]:
        """The last step."""
        return {CENTRE: State(torch.zeros(server.layout.trainable, dtype=torch.float64))}

    def merger(self, server: Server) -> Merger:
        """Keeps every update: memory grows with the clients of a round."""

        def rule(gathered: GatheringMerger) -> Tensor:
            centre = torch.zeros(server.layout.size, dtype=torch.float64)  # buffers: their last values
            centre[: server.layout.trainable] = server.state[CENTRE]
            for _ in range(self.iterations):
                centre = clipped_mean(gathered.updates, centre, self.tau, server.layout.trainable)
            server.state[CENTRE] = centre[: server.layout.trainable].clone()
            return centre

        return GatheringMerger(server, rule)


def clipped_mean(updates: list[Tensor], centre: Tensor, tau: float | None, trainable: int) -> Tensor:
    """One step from the centre."""
    distances = torch.stack([(update.double() - centre)[:trainable].norm() for update in updates])
    bound = torch.as_tensor(tau, dtype=torch.float64) if tau is not None else distances.quantile(0.5)
    tiny = torch.finfo(torch.float64).tiny
    factors = (bound / distances.clamp_min(tiny)).clamp_max(1.0)
    moved = torch.zeros_like(centre)
    for update, factor in zip(updates, factors, strict=True):
        moved += factor * (update.double() - centre)
    return centre + moved / len(updates)
