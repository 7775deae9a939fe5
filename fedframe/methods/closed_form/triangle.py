"""A symmetric matrix as its lower triangle, row by row: half of the numbers on the wire."""

from __future__ import annotations

import torch
from torch import Tensor


def packed_size(dim: int) -> int:
    """How many numbers the triangle has, its diagonal included."""
    return dim * (dim + 1) // 2


def pack(matrix: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The lower triangle, row after row: entry (i, j) is number i (i + 1) / 2 + j."""
    packed = torch.empty(packed_size(len(matrix)), dtype=dtype)
    for i, row in enumerate(matrix):  # a mask or a list of indices would take more memory than the matrix
        packed[packed_size(i) : packed_size(i + 1)] = row[: i + 1]
    return packed


def unpack(packed: Tensor, dim: int) -> Tensor:
    """The whole symmetric matrix in float64."""
    matrix = torch.empty(dim, dim, dtype=torch.float64)
    for i in range(dim):
        row = packed[packed_size(i) : packed_size(i + 1)]
        matrix[i, : i + 1] = row
        matrix[: i + 1, i] = row
    return matrix
