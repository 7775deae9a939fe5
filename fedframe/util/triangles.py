"""Symmetric matrices as their lower triangle: what is sent of them, and back.

The lower one, because torch's `cholesky` and `eigh` read no other: what is solved with a matrix that was sent is the
same, bit for bit, as with the matrix itself.
"""

from __future__ import annotations

from torch import Tensor


def triangle_size(dim: int) -> int:
    """How many numbers the triangle of a (dim, dim) matrix has."""
    return dim * (dim + 1) // 2


def pack(matrix: Tensor) -> Tensor:
    """The lower triangle of a (dim, dim) matrix, row by row: entry (i, j) is number i (i + 1) / 2 + j."""
    triangle = matrix.new_empty(triangle_size(len(matrix)))
    for i, row in enumerate(matrix):  # lists of indices would take more memory than the matrix
        triangle[triangle_size(i) : triangle_size(i + 1)] = row[: i + 1]
    return triangle


def unpack(triangle: Tensor, dim: int) -> Tensor:
    """The symmetric (dim, dim) matrix that has this lower triangle."""
    matrix = triangle.new_empty(dim, dim)
    for i in range(dim):
        row = triangle[triangle_size(i) : triangle_size(i + 1)]
        matrix[i, : i + 1] = row
        matrix[: i + 1, i] = row
    return matrix
