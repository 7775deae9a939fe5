"""A learned linear classifier: logits = W h + b."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedframe.core import Model, Part
from fedframe.data.target import TASKS, Task


@dataclass(frozen=True)
class LinearHead(Part):
    """A linear layer that is trained and merged like every other."""

    name: ClassVar[str] = "linear"
    tasks: ClassVar[tuple[Task, ...] | None] = TASKS

    bias: bool = True
    """Whether the classifier has a bias."""

    def build_head(self, model: Model) -> None:
        """Put the layer behind the features."""
        model.head = nn.Linear(model.dim, model.classes, bias=self.bias)
