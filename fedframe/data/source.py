"""Samples in memory: one array per set, class names, and the statistics that normalise a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from fedframe.data.target import Target, Task

Ints = npt.NDArray[np.int64]


class Inputs(Protocol):
    """Rows of samples, in memory or decoded on access."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one stored sample: (H, W, C) for images (channels last), (d,) for vectors."""
        ...

    def __len__(self) -> int: ...

    def take(self, rows: torch.Tensor) -> torch.Tensor:
        """Raw values (n, *shape), uint8 or float32, of these int64 rows; the caller may overwrite them."""
        ...

    def subset(self, rows: torch.Tensor) -> Inputs:
        """The same kind of inputs, of these rows only."""
        ...


@dataclass(frozen=True)
class ArrayInputs:
    """All samples in one contiguous tensor, which forked workers share without a copy; or a copy of it on a GPU."""

    tensor: torch.Tensor  # (n, *shape), uint8 or float32

    def __post_init__(self) -> None:
        if not self.tensor.is_contiguous():
            object.__setattr__(self, "tensor", self.tensor.contiguous())

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one stored sample."""
        return tuple(self.tensor.shape[1:])

    def __len__(self) -> int:
        return len(self.tensor)

    def take(self, rows: torch.Tensor) -> torch.Tensor:
        """Copy these rows out of the tensor."""
        return self.tensor.index_select(0, rows.to(self.tensor.device))

    def subset(self, rows: torch.Tensor) -> ArrayInputs:
        """Copy these rows into a tensor of their own."""
        return ArrayInputs(self.take(rows))


@dataclass(frozen=True)
class Samples:
    """Inputs, labels and, where the data name them, the natural clients (users) that they came from."""

    x: Inputs
    y: torch.Tensor  # int64 (n,)
    user: Ints | None = None  # int64 (n,), index of the natural client
    values: torch.Tensor | None = (
        None  # float32 (n, outputs): what is learned where that is no class; y is then a stratum
    )
    group: Ints | None = None  # int64 (n,): whose they are, where samples of one patient must not be tested apart

    def __len__(self) -> int:
        return len(self.y)

    @property
    def targets(self) -> torch.Tensor:
        """What is learned of each sample: its class, or its numbers or labels."""
        return self.y if self.values is None else self.values

    def subset(self, rows: torch.Tensor) -> Samples:
        """These rows as a set of their own."""
        user = None if self.user is None else self.user[rows.numpy()]
        values = None if self.values is None else self.values.index_select(0, rows)
        group = None if self.group is None else self.group[rows.numpy()]
        return Samples(self.x.subset(rows), self.y.index_select(0, rows), user, values, group)


@dataclass(frozen=True)
class Source:
    """A data set: training and test samples, class names, normalisation from the training samples."""

    name: str
    train: Samples
    test: Samples | None
    classes: tuple[str, ...]  # names, index = label; where no class is learned, those of the strata
    mean: torch.Tensor  # float32 (C,) for images, (d,) for vectors, in the scale of the stored values
    std: torch.Tensor  # as mean; never 0
    user_names: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None  # tables: what each input number means, "age" or "sex=female"
    notes: tuple[str, ...] = ()  # for the user, e.g. what was done with a validation split
    target: Target | None = None  # what is learned, if it is no class

    @property
    def task(self) -> Task:
        """What kind of answer is learned."""
        return "classification" if self.target is None else self.target.task

    @property
    def outputs(self) -> tuple[str, ...]:
        """What each number of a model's output is about: a class, a number or a label."""
        return self.classes if self.target is None else self.target.names

    @property
    def input_shape(self) -> tuple[int, ...]:
        """What a model sees of one sample: (C, H, W) for images, (d,) for vectors."""
        shape = self.train.x.shape
        return (shape[2], shape[0], shape[1]) if len(shape) == 3 else shape

    def batch(self, samples: Samples, rows: torch.Tensor) -> torch.Tensor:
        """Model-ready float32 inputs of these rows: normalised; images NCHW in channels_last memory."""
        raw = samples.x.take(rows)
        if raw.device.type != "cpu":
            return normalised(raw, self.mean.to(raw.device), self.std.to(raw.device), overwrite=True)
        return normalised(raw, self.mean, self.std, overwrite=True)


CHUNK = 1024  # rows per pass over a whole set: bounds the memory of the statistics


def normalised(raw: torch.Tensor, mean: torch.Tensor, std: torch.Tensor, *, overwrite: bool = False) -> torch.Tensor:
    """Model-ready float32 values: (raw - mean) / std.

    Takes the stored layout, (n, H, W, C) or (n, d); returns (n, C, H, W) in channels_last memory, or (n, d).
    With `overwrite`, float32 values are changed in place instead of copied.
    """
    x = raw
    if raw.dim() == 4 and raw.shape[3] > 1:
        # One long row of means instead of C of them: the inner loop then runs over H*W*C numbers, not over 3.
        pixels = raw.shape[1] * raw.shape[2]
        mean, std = mean.repeat(pixels), std.repeat(pixels)
        x = raw.reshape(len(raw), pixels * raw.shape[3])
    if x.dtype != torch.float32:
        x = x.to(torch.float32).sub_(mean)
    else:
        x = x.sub_(mean) if overwrite else x - mean
    x = x.mul_(std.reciprocal()).view(raw.shape)
    return x.permute(0, 3, 1, 2) if raw.dim() == 4 else x


def statistics(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation over all but the last dimension, float32; a std of 0 becomes 1.

    uint8 values are summed as whole numbers, so the result is bit-identical on every machine.
    """
    width = values.shape[-1]
    count = max(1, values.numel() // width)
    flat = values.reshape(len(values), -1)
    if values.dtype == torch.uint8:
        total = torch.zeros(flat.shape[1], dtype=torch.int64)
        square = torch.zeros_like(total)
        for part in torch.split(flat, CHUNK):
            total += part.sum(0, dtype=torch.int32)
            wide = part.to(torch.int32)
            square += wide.mul_(wide).sum(0, dtype=torch.int32)  # 1024 * 255^2 fits in 31 bits
        mean = total.view(-1, width).sum(0).double() / count
        variance = square.view(-1, width).sum(0).double() / count - mean * mean
    else:
        # Two passes: a single one loses the variance of values far from 0.
        mean = _sum(flat, width, None) / count
        variance = _sum(flat, width, mean) / count
    std = variance.clamp_min(0).sqrt()
    std = torch.where(std > 1e-6 * mean.abs().clamp_min(1e-6), std, torch.ones_like(std))
    return mean.float(), std.float()


def _sum(flat: torch.Tensor, width: int, centre: torch.Tensor | None) -> torch.Tensor:
    """Sum of the values, or of the squared distances to a centre, in float64."""
    total = torch.zeros(width, dtype=torch.float64)
    for part in torch.split(flat, CHUNK):
        wide = part.double().view(-1, width)
        total += wide.sum(0) if centre is None else (wide - centre).square_().sum(0)
    return total
