"""Symmetric matrices as their lower triangle: what is sent of them, and back.

The lower one, because torch's `cholesky` and `eigh` read no other: what is solved with a matrix that was sent is the
same, bit for bit, as with the matrix itself.
"""

from __future__ import annotations

import torch
from torch import Tensor


def triangle_size(dim: int) -> int:
    """How many numbers the triangle of a (dim, dim) matrix has."""
    return dim * (dim + 1) // 2


def pack(matrix: Tensor) -> Tensor:
    """The lower triangle of a (dim, dim) matrix, row by row, as one vector."""
    rows, columns = torch.tril_indices(*matrix.shape)
    return matrix[rows, columns]


def unpack(triangle: Tensor, dim: int) -> Tensor:
    """The symmetric (dim, dim) matrix that has this lower triangle."""
    rows, columns = torch.tril_indices(dim, dim)
    matrix = triangle.new_empty(dim, dim)
    matrix[columns, rows] = triangle
    matrix[rows, columns] = triangle
    return matrix
