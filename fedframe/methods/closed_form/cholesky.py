"""Cholesky factors of large symmetric matrices, block by block and in place of the matrix itself.

A matrix of 16,384 x 16,384 numbers in float64 is 2 GB. torch's own factor makes two copies of it, and its triangular
solver another of every slice. Here the factor takes the lower triangle of the matrix, whose upper triangle says what
was there, so that beside the matrix there are only blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

BLOCK = 1024  # rows or columns that are worked on at once


def blocks(size: int) -> list[tuple[int, int]]:
    """From where to where each block goes."""
    return [(start, min(start + BLOCK, size)) for start in range(0, size, BLOCK)]


def mirror_(matrix: Tensor) -> Tensor:
    """Copy what is above the diagonal to below it, in place: symmetric to the last bit."""
    for a, b in blocks(len(matrix)):
        square = matrix[a:b, a:b].triu()
        matrix[a:b, a:b] = square + square.triu(1).mT
        matrix[b:, a:b] = matrix[a:b, b:].mT
    return matrix


def blocked_cholesky_(matrix: Tensor) -> bool:
    """Put the Cholesky factor into the lower triangle, in place; False if there is none.

    Above the diagonal nothing is touched outside the blocks on it.
    """
    every = blocks(len(matrix))
    for number, (a, b) in enumerate(every, start=1):
        factor, info = torch.linalg.cholesky_ex(matrix[a:b, a:b])
        if int(info):
            return False
        matrix[a:b, a:b] = factor
        below = torch.linalg.solve_triangular(factor, matrix[b:, a:b].mT, upper=False).mT
        matrix[b:, a:b] = below
        for c, d in every[number:]:
            matrix[c:, c:d].addmm_(below[c - b :], below[c - b : d - b].mT, alpha=-1)
    return True


@contextmanager
def factored(matrix: Tensor, penalty: float) -> Iterator[Tensor | None]:
    """F in the lower triangle of `matrix`, with F F' = matrix + penalty I; None if there is no such factor.

    The matrix must be symmetric to the last bit. Afterwards it is as it was.
    """
    squares = [matrix[a:b, a:b].clone() for a, b in blocks(len(matrix))]
    try:
        matrix.diagonal().add_(penalty)
        yield matrix if blocked_cholesky_(matrix) else None
    finally:
        for (a, b), square in zip(blocks(len(matrix)), squares, strict=True):
            matrix[a:b, a:b] = square
            matrix[b:, a:b] = matrix[a:b, b:].mT


def solve_factored(factor: Tensor, right: Tensor) -> Tensor:
    """X with F F' X = `right`; what is above the diagonal of `factor` is not read."""
    found = right.clone()
    for a, b in blocks(len(factor)):
        rows = found[a:b].addmm_(factor[a:b, :a], found[:a], alpha=-1)
        found[a:b] = torch.linalg.solve_triangular(factor[a:b, a:b], rows, upper=False)
    for a, b in reversed(blocks(len(factor))):
        rows = found[a:b].addmm_(factor[b:, a:b].mT, found[b:], alpha=-1)
        found[a:b] = torch.linalg.solve_triangular(factor[a:b, a:b].mT, rows, upper=True)
    return found


def trace_of_inverse(factor: Tensor) -> float:
    """tr (F F')^-1 = |F^-1|^2, a block of columns of F^-1 at a time; they are zero above the diagonal."""
    every, total = blocks(len(factor)), 0.0
    for number, (a, b) in enumerate(every):
        column = factor.new_zeros(len(factor) - a, b - a)
        column[: b - a].fill_diagonal_(1.0)
        for c, d in every[number:]:
            rows = column[c - a : d - a].addmm_(factor[c:d, a:c], column[: c - a], alpha=-1)
            column[c - a : d - a] = torch.linalg.solve_triangular(factor[c:d, c:d], rows, upper=False)
        total += float(column.square_().sum())
    return total
