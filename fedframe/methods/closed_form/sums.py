"""What a client's samples add up to: V = sum w z z' and U = sum w z y', with z a feature and a constant 1 behind it.

Both are sums over samples, so those of any split of the data add up to those of the pooled data, in any order; a client
that leaves is subtracted. The constant makes the last row of U the class counts and that of V the sums of the features.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedframe.util.triangles import triangle_size, unpack

PANEL = 1024  # rows of V that are added up at once


@dataclass(frozen=True)
class Sums:
    """The packed triangle of V (dim + 1 rows) and U (dim + 1, classes)."""

    second: Tensor
    cross: Tensor

    @classmethod
    def zeros(cls, dim: int, classes: int) -> Sums:
        """Of no samples, in float64; `dim` is that of a feature, without the constant."""
        second = torch.zeros(triangle_size(dim + 1), dtype=torch.float64)
        return cls(second, torch.zeros(dim + 1, classes, dtype=torch.float64))

    def add_(self, other: Sums, times: float = 1.0) -> None:
        """Add the sums of other samples in place, or with `times` = -1 take them out again."""
        self.second.add_(other.second, alpha=times)
        self.cross.add_(other.cross, alpha=times)

    def rounded(self) -> Sums:
        """As they go over the wire: in float32."""
        return Sums(self.second.float(), self.cross.float())

    @property
    def counts(self) -> Tensor:
        """Samples of each class, times their weights."""
        return self.cross[-1]

    def matrix(self) -> Tensor:
        """V as a whole."""
        return unpack(self.second.double(), len(self.cross))


def stream_cross(batches: Iterable[tuple[Tensor, Tensor]], dim: int, classes: int) -> Tensor:
    """U alone, in float64, over batches of features (n, dim) and labels (n)."""
    cross = torch.zeros(dim + 1, classes, dtype=torch.float64)
    for features, labels in batches:
        cross.index_add_(1, labels, with_constant(features).T)
    return cross


def with_constant(features: Tensor) -> Tensor:
    """z, in float64: features and a 1 behind them."""
    return torch.cat([features.double(), features.new_ones(len(features), 1, dtype=torch.float64)], 1)


def stream_sums(
    batches: Iterable[tuple[Tensor, Tensor]], dim: int, classes: int, weights: Tensor | None = None
) -> Sums:
    """Sums over batches of features (n, dim) and labels (n); `weights` is one number per class.

    All in float64: features lie far from 0 as often as not, and what rounding does to their products stays when the
    product of their means is taken out. V is held as panels of rows up to the diagonal: neither its upper half nor a
    second copy is ever made.
    """
    size = dim + 1
    ends = [min(start + PANEL, size) for start in range(0, size, PANEL)]
    starts = [0, *ends[:-1]]
    panels = [torch.zeros(b - a, b, dtype=torch.float64) for a, b in zip(starts, ends, strict=True)]
    cross = torch.zeros(size, classes, dtype=torch.float64)
    for features, labels in batches:
        z = with_constant(features)
        weighted = z if weights is None else z * weights[labels].double()[:, None]
        for panel, a, b in zip(panels, starts, ends, strict=True):
            panel.addmm_(weighted[:, a:b].T, z[:, :b])
        cross.index_add_(1, labels, weighted.T)
    packed = torch.empty(triangle_size(size), dtype=torch.float64)
    for a in starts:
        for i, row in enumerate(panels.pop(0), start=a):  # whose memory is free after it
            packed[triangle_size(i) : triangle_size(i + 1)] = row[: i + 1]
    return Sums(packed, cross)
