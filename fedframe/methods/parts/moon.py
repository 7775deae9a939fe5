"""MOON: a client's features are drawn towards the server's model and away from its own last one.

Li et al., Model-Contrastive Federated Learning, CVPR 2021, Eq. 3:
    l = -log exp(s(z, z_glob)/T) / (exp(s(z, z_glob)/T) + exp(s(z, z_prev)/T)),  added to the loss with weight mu,
s the cosine similarity of the features that reach the classifier. A client that has no last model yet compares with the
server's twice: the term is then constant, as it is in the paper's first round.

Differs from the paper in: its nets have a projection head (two layers, 256 numbers) between encoder and classifier,
also under the methods it compares with; here the net stays as it is, and `moon+projection` adds a linear one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Key, Model, Part
from fedframe.core.model import copy_tensors, load_tensors
from fedframe.data.target import TASKS, Task

PREVIOUS = Key[Tensor]("moon/previous")  # the last local model, in the client's memory
NETS = Key[list[tuple[Model, Tensor]]]("moon/nets")  # the server's and the previous local model, each with its vector


@dataclass(frozen=True)
class Moon(Part):
    """A contrastive penalty of weight mu at temperature T; the last local model stays on the client."""

    name: ClassVar[str] = "moon"
    tasks: ClassVar[tuple[Task, ...] | None] = TASKS
    paper: ClassVar[str] = "Li, He, Song: Model-Contrastive Federated Learning, CVPR 2021"
    memory: ClassVar[tuple[str, ...]] = (PREVIOUS,)
    compares_with_server: ClassVar[bool] = True

    mu: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the contrastive term; 0 is FedAvg."""
    temperature: Annotated[float, Field(gt=0)] = 0.5
    """Temperature of the contrastive term."""

    def begin(self, context: ClientContext) -> None:
        """Load the two models to compare with; each process keeps one net for each."""
        if not context.training or not self.mu:
            return
        if NETS not in context.runtime.tools:
            nets = [context.job.fresh_model().eval() for _ in range(2)]
            context.runtime.tools[NETS] = [(net, context.job.roles.layout.bind(net)) for net in nets]
        previous = context.memory.get(PREVIOUS, context.start)
        private = copy_tensors(
            context.model, context.job.roles.private
        )  # what other parts keep here, such as BatchNorm's
        with torch.no_grad():
            for (net, flat), weights in zip(context.runtime.tools[NETS], (context.start, previous), strict=True):
                flat.copy_(weights)
                load_tensors(net, private)

    def penalty(self, context: ClientContext) -> Tensor:
        """mu times the mean of Eq. 3 over the batch."""
        if not self.mu:
            return context.embedding.new_zeros(())
        with torch.no_grad():
            shared, previous = (self._features(net, context) for net, _ in context.runtime.tools[NETS])
        # As in prediction, like the other two: what others add in training only is no drift.
        own = context.job.method.refine(context.model, context.features)
        similar = torch.stack([F.cosine_similarity(own, other, dim=1) for other in (shared, previous)], dim=1)
        target = torch.zeros(len(similar), dtype=torch.int64, device=similar.device)
        return self.mu * F.cross_entropy(similar / self.temperature, target)  # Eq. 3

    def _features(self, net: Any, context: ClientContext) -> Tensor:
        return context.job.method.embed(net, context.inputs)

    def finish(self, context: ClientContext) -> None:
        """Keep the local model for the next visit."""
        if self.mu:
            context.memory[PREVIOUS] = (context.start.cpu() + context.reply["update"]).clone()
