"""The context of one client's work: its data, what it received, what it keeps, and what it will reply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedframe.core.declared import Declared
from fedframe.core.message import Number
from fedframe.core.model import copy_tensors, load_tensors
from fedframe.core.optimizers import Optimizer
from fedframe.core.part import Part
from fedframe.core.precision import LossScale
from fedframe.core.scratch import Scratch
from fedframe.errors import RunError

if TYPE_CHECKING:
    from fedframe.core.client_loop import StepHooks
    from fedframe.core.client_runtime import ClientRuntime


@dataclass
class ClientContext:
    """One client's work for one request. Parts read and change it. Only `memory` is kept after the request."""

    runtime: ClientRuntime  # what does the work: model, data and training loop
    kind: str  # what is asked for: train, statistics, personalise or own
    client: int  # the number of the client
    round: int  # the number of the round, from 1 on
    lr: float  # the learning rate of the round
    rows: Tensor  # the client's training samples, as row numbers
    received: Mapping[str, Tensor]  # what the server sent: "model", and the state that parts broadcast
    memory: Declared[Tensor]  # private and kept between rounds; a part's names start with the part's name
    generator: torch.Generator  # random numbers of this client and round, the same for any engine
    reply: Declared[Tensor]  # what parts send beside the update, as `uploads` declares it
    numbers: Declared[Number]  # plain numbers to send, which `uploads` declares too
    scratch: Scratch = field(default_factory=Scratch)  # what parts need only until this work is done
    steps: int = 0  # local steps so far
    gradients: int = 0  # how often the gradient of a batch was computed
    plain_steps: bool = False  # whether the current training does without the run's momentum and weight decay
    pull: float = 0.0  # the coefficient with which parts pull every step towards the server's weights
    hooks: StepHooks | None = None  # the hooks that take part in the current training
    loss_scale: LossScale | None = None  # the scale of the loss, in float16 only
    stage: int = 0  # the number of the stage, if statistics are asked for in several

    inputs: Tensor = field(init=False)  # the inputs of the current batch
    labels: Tensor = field(init=False)  # the labels of the current batch
    batch_rows: Tensor = field(init=False)  # the row numbers of the current batch
    features: Tensor = field(init=False)  # the features of the current batch, as they leave the backbone
    embedding: Tensor = field(init=False)  # the features of the current batch, as they reach the classifier
    logits: Tensor = field(init=False)  # the scores of the current batch by class
    optimizer: Optimizer = field(init=False)  # takes the local steps
    named: dict[str, nn.Parameter] = field(init=False)  # the weights that are trained, by name

    def __post_init__(self) -> None:
        self.job = self.runtime.job  # the run: settings, method and data
        self.model = self.runtime.model  # the local model, which training changes
        self.start = self.received["model"]  # the server's weights as one flat vector

    @property
    def training(self) -> bool:
        """Whether this is a round of federated training, not a stage after it."""
        return self.kind == "train"

    @cached_property
    def class_counts(self) -> Tensor:
        """The number of the client's training samples in each class."""
        self._needs_classes("class_counts")
        labels = self.job.federation.source.train.y[self.rows]
        return torch.bincount(labels, minlength=self.model.classes)

    def fit(
        self,
        epochs: int,
        steps: int | None = None,
        only: Callable[[str], bool] | None = None,
        parts: Sequence[Part] | None = None,
        loss: Part | None = None,
    ) -> float:
        """Train on the client's own data and return the mean loss.

        `only` selects the weights to train by name, also frozen ones. The default is the weights that rounds train.
        `parts` are the parts whose penalties and corrections are used: by default all in a round, and none in a later
        stage. `loss` replaces the method's own loss.
        """
        return self.runtime.fit(self, epochs, steps, only, parts, loss)

    def compute_gradient(self) -> Tensor:
        """Compute the loss of the batch at the current weights. Its gradient, corrected and clipped, is in `.grad`.

        This is for parts that fill `step`. It may be called several times; each call replaces the gradient.
        """
        return self.runtime.compute_gradient(self)

    def apply_gradient(self) -> None:
        """Take the optimiser's step along the gradient, unless the gradient has overflowed in float16."""
        if self.loss_scale is None or not self.loss_scale.overflowed:
            self.optimizer.step()

    def train_missed_rounds(self, parts: Sequence[Part]) -> None:
        """Train the current model for as long as rounds trained an average client, up to a bound.

        This is for a client that was in no round. `parts` are the parts whose penalties and corrections are used.
        """
        self.runtime.train_missed_rounds(self, parts, None)

    def class_sums(self) -> tuple[Tensor, Tensor]:
        """Return the sums of the client's embeddings by class (classes, dim), and its samples by class, on the CPU."""
        self._needs_classes("class_sums")
        sums = torch.zeros(self.model.classes, self.model.dim)
        sums.index_add_(0, self.job.federation.source.train.y[self.rows], self.embeddings().cpu())
        return sums, self.class_counts.float()

    def _needs_classes(self, name: str) -> None:
        task = self.job.federation.source.task
        if task != "classification":
            raise RunError(
                f"context.{name} is about classes, and the task is {task}: a part that uses it says so by "
                "tasks = ('classification',)."
            )

    def keep_model(self, part: str) -> None:
        """Copy all weights that learn into the client's memory, under a part's name."""
        tensors = copy_tensors(self.model, self.job.roles.changing)
        self.memory |= {f"{part}/{name}": tensor for name, tensor in tensors.items()}

    def load_model(self, part: str) -> bool:
        """Load the weights that `keep_model` has kept. Returns False if there are none."""
        start = len(part) + 1
        kept = {name[start:]: tensor for name, tensor in self.memory.items() if name.startswith(f"{part}/")}
        load_tensors(self.model, kept)
        return bool(kept)

    def embeddings(self, rows: Tensor | None = None) -> Tensor:
        """Return features as they reach the classifier, of the client's training rows or of `rows`.

        They are computed as in prediction: in evaluation mode, in batches and without augmentation.
        """
        return self.runtime.embeddings(self.rows if rows is None else rows, self.client if rows is None else None)

    @torch.no_grad()
    def mean_loss(self) -> float:
        """Return the method's loss of the current model on all training samples of the client, in evaluation mode."""
        self.labels = self.job.federation.source.train.targets[self.rows].to(self.start.device)
        self.embedding = self.embeddings()
        self.logits = self.model.head(self.embedding)
        return float(self.job.method.slot("loss").loss(self.logits, self.labels, self))

    def trainable(self, vector: Tensor) -> Tensor:
        """Return a view of what learns in a flat vector (weights or an update), without BatchNorm's statistics."""
        return vector[: self.job.roles.layout.trainable]
