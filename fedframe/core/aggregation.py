"""Sums over clients that stream: one running sum in float64, whatever the number of clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedframe.core.message import Message

if TYPE_CHECKING:
    from fedframe.core.part import Upload


BLOCK = 1 << 18  # numbers that are widened at a time


class RunningMean:
    """The weighted mean of vectors, added one by one and in a fixed order."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.total = torch.zeros(size, dtype=torch.float64)
        self._wide = torch.empty(min(size, BLOCK), dtype=torch.float64)
        self.weight = 0.0

    def add(self, vector: Tensor, weight: float) -> None:
        """Add one vector."""
        # Widening into a buffer first is twice as fast as letting torch mix the two types in one addition; by blocks it
        # stays in the cache and takes no memory.
        if 0 < self.size <= BLOCK:
            self.total.add_(self._wide.copy_(vector), alpha=weight)
        else:
            for start in range(0, self.size, BLOCK):
                total = self.total[start : start + BLOCK]
                self._wide[: len(total)].copy_(vector[start : start + BLOCK])
                total.add_(self._wide[: len(total)], alpha=weight)
        self.weight += weight

    def mean(self) -> Tensor:
        """The mean so far in float64; zero when nothing was added."""
        return self.total / self.weight if self.weight else self.total

    def into_mean(self) -> Tensor:
        """The same, in the memory of the sum: for a step that is the mean, and of a model that is large."""
        total, self.total = self.total, torch.empty(0, dtype=torch.float64)
        return total.div_(self.weight) if self.weight else total


class MeanMerger:
    """Adds up the updates of the trainable weights and makes a step of their mean."""

    def __init__(
        self, size: int, step: Callable[[RunningMean], Tensor] = RunningMean.mean, noise: Tensor | None = None
    ) -> None:
        self.size, self.step, self.noise = size, step, noise
        self.updates = RunningMean(size)

    def add(self, reply: Message, weight: float) -> None:
        """Take one client's update."""
        self.updates.add(reply.tensors["update"][: self.size], weight)

    def finish(self) -> Tensor:
        """The step, from the sum with its noise."""
        if self.noise is not None:
            self.updates.total += self.noise
        return self.step(self.updates)


class UploadSums:
    """What parts have declared to upload in a round: summed in float64 as the replies come, or kept one by one."""

    def __init__(self, uploads: Mapping[str, Upload]) -> None:
        self._uploads = {name: upload for name, upload in uploads.items() if is_tensor_of_round(upload)}
        summed = [name for name, upload in self._uploads.items() if upload.aggregate != "each"]
        self._totals = {name: torch.zeros(*self._uploads[name].shape, dtype=torch.float64) for name in summed}
        self._each: dict[str, list[Tensor]] = {name: [] for name in self._uploads if name not in self._totals}

    def add(self, reply: Message, weight: float) -> None:
        """Take one client's reply; its tensors are lent."""
        for name, upload in self._uploads.items():
            tensor = reply.tensors[name]
            if upload.aggregate == "each":
                self._each[name].append(tensor.clone())
            else:
                self._totals[name].add_(tensor.double(), alpha=weight if upload.aggregate == "weighted_sum" else 1.0)

    def total(self, name: str) -> Tensor:
        """The sum of an upload."""
        if name in self._each:
            raise NameError(
                f"{name!r} is declared as 'each' in 'uploads', which has no sum; take server.each({name!r}), or "
                "declare it as 'sum'"
            )
        if name not in self._totals:
            raise NameError(f"no part declares {name!r} as a sum in 'uploads'; declared are {sorted(self._totals)}")
        return self._totals[name]

    def each(self, name: str) -> list[Tensor]:
        """Every client's upload."""
        if name in self._totals:
            raise NameError(
                f"{name!r} is declared as a sum in 'uploads'; take server.total({name!r}), or declare it as 'each'"
            )
        if name not in self._each:
            raise NameError(f"no part declares {name!r} as 'each' in 'uploads'; declared are {sorted(self._each)}")
        return self._each[name]


def is_tensor_of_round(upload: Upload) -> bool:
    """Whether an upload is one of the tensors of a round's reply."""
    return upload.when == "round" and upload.aggregate != "number"
