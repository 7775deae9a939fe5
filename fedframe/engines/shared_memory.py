"""Memory that processes share: tensors are written into it once and read from it in place.

It is an anonymous mapping made before the processes are forked, so it needs no name, no file and no `/dev/shm` (which
containers often limit to 64 MB), and it takes up only the pages that are used.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

ALIGN = 64
TYPES = {str(kind): kind for kind in (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bool)}
Spec = list[Any]  # [name, type, shape, offset]: plain values that JSON can carry


class Slab:
    """Shared memory for the tensors of one message at a time."""

    def __init__(self, capacity: int) -> None:
        self.capacity = max(capacity, mmap.PAGESIZE)
        self._map = mmap.mmap(-1, self.capacity)
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    def write(self, tensors: Mapping[str, Tensor]) -> list[Spec] | None:
        """Write tensors and return where each is; None when they do not fit."""
        specs: list[Spec] = []
        offset = 0
        for name, tensor in tensors.items():
            if offset + tensor.nbytes > self.capacity:
                return None
            self._view(tensor.dtype, tensor.shape, offset).copy_(tensor)
            specs.append([name, str(tensor.dtype), list(tensor.shape), offset])
            offset += -(-tensor.nbytes // ALIGN) * ALIGN
        return specs

    def read(self, specs: list[Spec]) -> dict[str, Tensor]:
        """The tensors in place: they change when the next message is written."""
        return {name: self._view(TYPES[kind], torch.Size(shape), offset) for name, kind, shape, offset in specs}

    def _view(self, kind: torch.dtype, shape: torch.Size, offset: int) -> Tensor:
        end = offset + shape.numel() * kind.itemsize
        return self._bytes[offset:end].view(kind).view(shape)
