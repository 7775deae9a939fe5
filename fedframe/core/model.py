"""The model of a run: backbone, what parts add to it, and the classifier; and which of its tensors travel.

Every float tensor has one role. *Shared*: trainable, sent and merged. *Private*: trainable, stays on the client.
*Fixed*: never trained (a frozen classifier), sent once. Float buffers (BatchNorm statistics) follow one policy:
averaged with the weights (default), private, or fixed. Integer buffers (`num_batches_tracked`) never travel and start
from the initial model for every client, so that a count is never averaged as if it were a weight.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor, nn

from fedframe.core.layout import Layout, make_layout, named_tensors

BufferPolicy = Literal["average", "private", "fixed"]


class Model(nn.Module):
    """A backbone, the modules that parts add by name, and a classifier."""

    def __init__(self, backbone: nn.Module, dim: int, classes: int) -> None:
        super().__init__()
        self.backbone = backbone  # turns inputs into features
        self.extras = nn.ModuleDict()  # modules that parts add, by name
        self.head: nn.Module = nn.Identity()  # the classifier
        self.dim = dim  # the size of the feature that reaches the classifier; a part that changes it updates this
        self.classes = classes  # the number of classes
        # What shapes of uploads depend on beside these, noted by the part that sends them.
        self.sizes: dict[str, int] = {}
        self.frozen: tuple[str, ...] = ()  # paths of modules that keep their weights and stay in evaluation mode
        self.adapters: frozenset[str] = frozenset()  # parameters in frozen modules that learn all the same
        self.compute_type: torch.dtype | None = None  # the type of the backbone's arithmetic; None: that of its weights

    def freeze(self, paths: Collection[str], learning: Collection[str] = ()) -> None:
        """Let the weights of these modules of the backbone stay as they are; "" is all of it.

        `learning` names parameters of the backbone that learn although their modules are frozen: adapters.
        """
        self.frozen = tuple(f"backbone.{path}".rstrip(".") for path in paths)
        self.adapters = frozenset(f"backbone.{name}" for name in learning)
        for path in self.frozen:
            self.get_submodule(path).requires_grad_(False)
        for name in self.adapters:
            self.get_parameter(name).requires_grad_(True)
        self.train(self.training)

    def is_frozen(self, name: str) -> bool:
        """Whether a tensor belongs to a frozen module, and is no adapter in it."""
        return name not in self.adapters and any(name.startswith(f"{path}.") for path in self.frozen)

    def train(self, mode: bool = True) -> Self:
        """Training mode, but for what is frozen."""
        super().train(mode)
        for path in self.frozen:
            self.get_submodule(path).eval()
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        """The backbone's feature; what happens to it next is up to the method."""
        if self.compute_type is None:
            feature: Tensor = self.backbone(inputs)
            return feature
        with torch.autocast(inputs.device.type, self.compute_type):
            feature = self.backbone(inputs)
        return feature.float()


@dataclass(frozen=True)
class Roles:
    """Names of the tensors that travel (as a layout), stay private, or never change."""

    layout: Layout
    private: tuple[str, ...]
    fixed: tuple[str, ...]

    @property
    def changing(self) -> tuple[str, ...]:
        """Names of all tensors that training changes, shared and private."""
        return (*(entry.name for entry in self.layout.entries), *self.private)


def assign_roles(model: nn.Module, private: Collection[str], buffers: BufferPolicy) -> Roles:
    """Give every tensor of the model its role."""
    parameters = dict(model.named_parameters())
    shared: list[tuple[str, Tensor]] = []
    averaged: list[tuple[str, Tensor]] = []
    kept: list[str] = []
    fixed: list[str] = []
    for name, tensor in named_tensors(model).items():
        trainable = name in parameters and parameters[name].requires_grad
        still = isinstance(model, Model) and model.is_frozen(name)
        buffer = name not in parameters and tensor.is_floating_point() and not still
        averages = buffer and buffers == "average"
        private_buffer = buffer and buffers == "private"
        if name in private or private_buffer:
            kept.append(name)
        elif trainable:
            shared.append((name, tensor))
        elif averages:
            averaged.append((name, tensor))
        else:
            fixed.append(name)
    return Roles(make_layout(shared, averaged), tuple(kept), tuple(fixed))


def has_batch_norm(model: nn.Module) -> bool:
    """Whether some layer needs more than one sample in a training batch."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def count_parameters(model: nn.Module) -> int:
    """How many numbers the model learns."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@torch.no_grad()
def copy_tensors(model: nn.Module, names: Collection[str]) -> dict[str, Tensor]:
    """Copies of some of the model's tensors."""
    if not names:  # most methods have none that are private, and looking through a model takes longer than a small step
        return {}
    tensors = named_tensors(model)
    return {name: tensors[name].detach().clone() for name in names}


@torch.no_grad()
def load_tensors(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Write values into some of the model's tensors, in place (views of the flat vector stay views)."""
    if not values:
        return
    tensors = named_tensors(model)
    for name, value in values.items():
        tensors[name].copy_(value)
