"""The final shared model is the mean of the shared models of the last rounds; rounds and messages stay as they are.

Izmailov, Podoprikhin, Garipov, Vetrov, Wilson: Averaging Weights Leads to Wider Optima and Better Generalization, UAI
2018 (SWA), Eq. in Section 3.2, with rounds instead of epochs:
    w_SWA <- (n w_SWA + w) / (n + 1)
over the last n rounds. From round to round the shared model swings with the clients that were drawn and with what they
disagree about; a mean takes these swings out, at no cost. A method that claims a gain from what it does late in
training has to beat it.

Averaged are the last fifth of the rounds, at least five: SWA takes the last quarter of its budget, a mean of fewer than
five models still swings, and one that reaches further back lags behind while the model moves.

Differs from the paper in: BatchNorm's running statistics are averaged like weights, where SWA computes them again in a
pass over the data, which would be one more message from every client. The learning rate is the run's; a cyclical one is
not needed for the swings. The mean is kept in float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from pydantic import Field

from fedframe.core import Method, Part, Server, State
from fedframe.errors import SettingError
from fedframe.settings import Settings

if TYPE_CHECKING:
    from fedframe.core.job import Job


@dataclass(frozen=True)
class Average(Part):
    """The mean of the shared models of the last rounds becomes the final one."""

    name: ClassVar[str] = "average"
    paper: ClassVar[str] = "Izmailov et al., Averaging Weights Leads to Wider Optima, UAI 2018"
    rank: ClassVar[int] = 100  # after all that other parts do to the model when a round is merged

    share: Annotated[float, Field(ge=0, le=1)] = 0.2  # of the rounds, counted from the last
    """Share of the rounds, counted from the last, whose models are averaged."""
    fewest: Annotated[int, Field(ge=1)] = 5  # rounds, where the share is less
    """The fewest models that are averaged, whatever the share."""

    def check_method(self, method: Method) -> None:
        """Refuse methods without a shared model: private layers belong to the last round's shared ones."""
        if not method.shares_a_model:
            raise SettingError(
                f"{method.name!r} cannot be combined: 'average' needs a shared model that predicts, and here a part of "
                "it stays on the clients; leave it out."
            )

    def check_settings(self, settings: Settings) -> None:
        """Refuse private BatchNorm statistics for the same reason."""
        if settings.buffers == "private":
            raise SettingError("average needs a shared model that predicts: buffers = 'private'; use average.")

    def first_round(self, rounds: int) -> int:
        """The first of the rounds whose models are averaged."""
        return rounds + 1 - min(rounds, max(self.fewest, int(self.share * rounds + 0.5)))

    def server_state(self, server: Server) -> dict[str, State]:
        """The mean so far, buffers included, and of how many models it is."""
        empty = torch.zeros(server.layout.size, dtype=torch.float64)
        return {"average/mean": State(empty), "average/models": State(torch.zeros(1, dtype=torch.float64))}

    def after_merge(self, server: Server, clients: int) -> None:
        """Add the round's model to the mean."""
        if server.current_round < self.first_round(server.job.settings.rounds):
            return
        count = server.state["average/models"] + 1
        mean = server.state["average/mean"]
        server.state["average/mean"] = mean + (server.model.double() - mean) / count  # Section 3.2
        server.state["average/models"] = count

    def furthest(self, longest: Mapping[str, float], round: int, job: Job) -> Mapping[str, float] | None:
        """In rounds the model is as without it."""
        return {}

    def after_rounds(self, server: Server) -> None:
        """The mean takes the model's place; if all of the last rounds were given up, there is none."""
        if float(server.state["average/models"]) > 0:
            server.model = server.state["average/mean"].float()
