"""Where each shared tensor of a model lies in one flat vector.

The shared weights of a model live in one contiguous float32 vector and the model's tensors are views of it. Loading the
server's model is then one copy, an update is one subtraction, and a merge rule works on plain vectors. Trainable
weights come first, averaged buffers (BatchNorm statistics) after them, so merge rules that are about gradients can
leave the buffers to the plain mean. Every tensor starts on a 64-byte line: the kernels then round alike in every
process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

LINE = 16  # float32 values in 64 bytes


@dataclass(frozen=True)
class Entry:
    """One tensor's place in the flat vector."""

    name: str
    shape: torch.Size
    start: int

    def view(self, flat: Tensor) -> Tensor:
        """This tensor as a view of the flat vector; convolution weights lie channels-last."""
        piece = flat[self.start : self.start + self.shape.numel()]
        if len(self.shape) == 4:
            outputs, inputs, height, width = self.shape
            return piece.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
        return piece.view(self.shape)


@dataclass(frozen=True)
class Layout:
    """The places of all shared tensors: trainable ones in `[0, trainable)`, buffers in `[trainable, size)`."""

    entries: tuple[Entry, ...]
    trainable: int
    size: int

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Every shared tensor by name, as views of a flat vector."""
        return {entry.name: entry.view(flat) for entry in self.entries}

    def trainable_views(self, flat: Tensor) -> dict[str, Tensor]:
        """Every trainable tensor by name, as views of a vector that holds only those."""
        return {entry.name: entry.view(flat) for entry in self.entries if entry.start < self.trainable}

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """A new flat vector that holds copies of these tensors."""
        flat = torch.zeros(self.size)
        for name, view in self.views(flat).items():
            view.copy_(tensors[name].detach())
        return flat

    def bind(self, model: nn.Module) -> Tensor:
        """Move the model's shared tensors into a new flat vector and make them views of it."""
        device = next(iter(model.parameters())).device
        tensors = named_tensors(model)
        flat = self.flatten(tensors).to(device)
        for name, view in self.views(flat).items():
            tensors[name].data = view
        return flat


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, as the live tensors; one that has two names (tied) comes once."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, Tensor) and id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = tensor
    return found


def make_layout(trainable: Sequence[tuple[str, Tensor]], buffers: Sequence[tuple[str, Tensor]]) -> Layout:
    """Lay out tensors one after the other, trainable ones first."""
    entries: list[Entry] = []
    start = 0
    end_of_trainable = 0
    for group in (trainable, buffers):
        for name, tensor in group:
            entries.append(Entry(name, tensor.shape, start))
            start += -(-tensor.numel() // LINE) * LINE
        end_of_trainable = end_of_trainable if group is buffers else start
    return Layout(tuple(entries), end_of_trainable, start)
