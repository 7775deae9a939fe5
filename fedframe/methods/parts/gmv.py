"""Global memory vectors: late in training, features are moved towards where all clients together put their class.

Huang et al., Neural Collapse Inspired Federated Learning with Non-iid Data, arXiv 2303.16066, Algorithm 1. In training
only, from round `warm` on, h = f + alpha mu_y. mu_c is the mean, over the round's clients that hold class c, of their
class mean f_c. It is kept up from the first round on, so that every class that was seen has a memory when it is needed.

Differs from the paper in: Algorithm 1 as printed divides 0 by 0 for clients that lack a class; here they do not count,
a class that no client held keeps its old memory, and before it has one it is left alone. Its 1/|S| over all sampled
clients, to which those that lack a class then add nothing, shortens the memory the more, the fewer hold the class:
`divisor = sampled`. `warm` may be a share of all rounds. Algorithm 1 writes f for the features of the training loop;
they are those of the last local epoch, which is next to free although the weights still move in it. `means = final`
takes them from the final local model, in evaluation mode, in a pass that costs nearly half an epoch in every round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Key, Model, ModelSize, Part, Server, State, Upload
from fedframe.errors import SettingError
from fedframe.settings import Settings

if TYPE_CHECKING:
    from fedframe.core.job import Job

MEMORY = Key[Tensor]("gmv/memory")  # mu_c by class, on the server
MEANS, HELD = Key[Tensor]("gmv/means"), Key[Tensor]("gmv/held")  # what a client sends
SHIFT = Key[Tensor]("gmv/shift")  # alpha mu_c by class
SUMS = Key[tuple[Tensor, Tensor]]("gmv/sums")  # of features by class, and how many they are


@dataclass(frozen=True)
class GlobalMemory(Part):
    """Class means of all clients, added to training features with weight alpha after a warm-up."""

    name: ClassVar[str] = "gmv"
    paper: ClassVar[str] = "Huang et al., Neural Collapse Inspired Federated Learning with Non-iid Data, 2023"
    rank: ClassVar[int] = 10  # acts on what the other transforms leave

    alpha: Annotated[float, Field(ge=0)] = 0.5
    """Weight of the memory."""
    warm: Annotated[float, Field(ge=0)] = 0.6  # below 1: a share of all rounds; else the first round with memory
    """First round with memory: below 1 a share of all rounds, otherwise the number of the round."""
    means: Literal["training", "final"] = "training"  # features as training sees them, or of the final local model
    """Class means come from the features of `training`, or from a pass over the data by the `final` local model."""
    divisor: Literal["holders", "sampled"] = "holders"  # of the sum of class means: clients with the class, or all of S
    """What the sum of class means is divided by: the `holders` of the class, or all `sampled` clients."""

    def check_settings(self, settings: Settings) -> None:
        """Refuse a warm-up after which memory would never be used."""
        if self.warm >= 1 and (self.warm != int(self.warm) or self.warm > settings.rounds):
            raise SettingError(
                f"gmv.warm = {self.warm:g} is neither a share of the rounds nor one of {settings.rounds} rounds; "
                "use gmv.warm = 0.6."
            )

    def first_round(self, job: Job) -> int:
        """The round from which memory is used."""
        return max(1, round(self.warm * job.settings.rounds)) if self.warm < 1 else int(self.warm)

    def begin(self, context: ClientContext) -> None:
        """Prepare alpha mu_c by class, zero where there is no memory."""
        if context.training and context.round >= self.first_round(context.job):
            context.scratch[SHIFT] = self.alpha * context.received[MEMORY]

    def begin_epoch(self, context: ClientContext, epoch: int) -> None:
        """Reset the sums: only the last epoch counts, because its features are nearest to those of the final model."""
        if self.means == "training" and context.training:
            sums = torch.zeros(context.model.classes, context.model.dim, device=context.start.device)
            context.scratch[SUMS] = (sums, torch.zeros(context.model.classes, device=context.start.device))

    def transform(self, model: Model, features: Tensor, context: ClientContext | None) -> Tensor:
        """h = f + alpha mu_y, in training only."""
        if context is not None and SUMS in context.scratch:
            sums, counts = context.scratch[SUMS]
            sums.index_add_(0, context.labels, features.detach())
            counts += torch.bincount(context.labels, minlength=len(counts))
        if context is None or SHIFT not in context.scratch:
            return features
        shift: Tensor = context.scratch[SHIFT][context.labels]
        return features + shift  # Algorithm 1: h

    @property
    def samplewise(self) -> bool:
        """Outside of rounds each sample is transformed by itself."""
        return True

    def finish(self, context: ClientContext) -> None:
        """Send the class means, zero for classes that the client lacks, and which classes it holds."""
        gathered = context.scratch.get(SUMS)
        sums, counts = context.class_sums() if gathered is None else (tensor.cpu() for tensor in gathered)
        context.reply |= {MEANS: sums / counts.clamp_min(1)[:, None], HELD: (counts > 0).float()}

    def server_state(self, server: Server) -> dict[str, State]:
        """No memory yet."""
        memory = torch.zeros(server.job.template.classes, server.job.template.dim)
        return {MEMORY: State(memory, broadcast=True)}

    def uploads(self, size: ModelSize) -> dict[str, Upload]:
        """Class means, zero for classes that the client lacks, and which classes it holds."""
        return {MEANS: Upload([size.classes, size.dim], "sum"), HELD: Upload([size.classes], "sum")}

    def after_merge(self, server: Server, clients: int) -> None:
        """Set a new memory for the classes that some client held; the others keep theirs."""
        total, count = server.total(MEANS), server.total(HELD)
        divisor = count.clamp_min(1)[:, None] if self.divisor == "holders" else max(1, clients)
        fresh = (total / divisor).float()  # Algorithm 1: mu_c
        server.state[MEMORY] = torch.where(count[:, None] > 0, fresh, server.state[MEMORY])

    def furthest(self, longest: Mapping[str, float], round: int, job: Job) -> Mapping[str, float] | None:
        """From one set of class means to another."""
        return {MEMORY: 2 * longest[MEANS]}
