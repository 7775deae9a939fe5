"""Lists of rows of different lengths in two flat arrays: the rows of client k are a view, never a copy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fedframe.data.source import Ints


@dataclass(frozen=True)
class Ragged:
    """K lists of whole numbers, concatenated: list k is values[offsets[k]:offsets[k + 1]]."""

    offsets: torch.Tensor  # int64 (K + 1,)
    values: torch.Tensor  # int64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, k: int) -> torch.Tensor:
        if not 0 <= k < len(self):
            raise IndexError(f"list {k} of {len(self)}")
        return self.values[int(self.offsets[k]) : int(self.offsets[k + 1])]

    def sizes(self) -> torch.Tensor:
        """Length of every list, int64 (K,)."""
        return self.offsets.diff()

    def owners(self) -> torch.Tensor:
        """The list that every value is in, int64, as long as values."""
        return torch.repeat_interleave(torch.arange(len(self)), self.sizes())

    def select(self, chosen: torch.Tensor) -> Ragged:
        """These lists, in this order."""
        starts, sizes = self.offsets[chosen], self.sizes()[chosen]
        offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        shift = torch.repeat_interleave(starts - offsets[:-1], sizes)
        return Ragged(offsets, self.values[shift + torch.arange(len(shift))])


def grouped(owner: Ints, rows: Ints, lists: int) -> Ragged:
    """Group rows by their owner, in rising order within a list; rows with owner -1 are left out."""
    kept = owner >= 0
    owner, rows = owner[kept], rows[kept]
    order = np.lexsort((rows, owner))
    offsets = np.zeros(lists + 1, np.int64)
    np.cumsum(np.bincount(owner, minlength=lists), out=offsets[1:])
    return Ragged(torch.from_numpy(offsets), torch.from_numpy(rows[order]))
