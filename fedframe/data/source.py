"""Samples in memory: one array per set, class names, and the numbers that normalise a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from fedframe.data.normalise import normalised

Ints = npt.NDArray[np.int64]


class Inputs(Protocol):
    """Rows of samples, in memory or decoded when asked for."""

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
    """All samples in one contiguous tensor, which forked workers share without a copy."""

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
        return self.tensor.index_select(0, rows)

    def subset(self, rows: torch.Tensor) -> ArrayInputs:
        """Copy these rows into a tensor of their own."""
        return ArrayInputs(self.take(rows))


@dataclass(frozen=True)
class Samples:
    """Inputs, labels and, where the data have them, the people or places they came from."""

    x: Inputs
    y: torch.Tensor  # int64 (n,)
    user: Ints | None = None  # int64 (n,), index of the natural client

    def __len__(self) -> int:
        return len(self.y)

    def subset(self, rows: torch.Tensor) -> Samples:
        """These rows as a set of their own."""
        user = None if self.user is None else self.user[rows.numpy()]
        return Samples(self.x.subset(rows), self.y.index_select(0, rows), user)


@dataclass(frozen=True)
class Source:
    """A data set: training and test samples, class names, normalisation from the training samples."""

    name: str
    train: Samples
    test: Samples | None
    classes: tuple[str, ...]  # names, index = label
    mean: torch.Tensor  # float32 (C,) for images, (d,) for vectors, in the scale of the stored values
    std: torch.Tensor  # as mean; never 0
    user_names: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None  # tables: what each input number means, "age" or "sex=female"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """What a model sees of one sample: (C, H, W) for images, (d,) for vectors."""
        shape = self.train.x.shape
        return (shape[2], shape[0], shape[1]) if len(shape) == 3 else shape

    def batch(self, samples: Samples, rows: torch.Tensor) -> torch.Tensor:
        """Model-ready float32 inputs of these rows: normalised; images NCHW in channels_last memory."""
        return normalised(samples.x.take(rows), self.mean, self.std, overwrite=True)
