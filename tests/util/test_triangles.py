"""Symmetric matrices survive being sent as a triangle, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedframe.util.triangles import pack, triangle_size, unpack


def test_triangle_by_hand() -> None:
    matrix = torch.tensor([[1, 2, 4], [2, 3, 5], [4, 5, 6]])
    assert pack(matrix).tolist() == [1, 2, 3, 4, 5, 6]
    assert torch.equal(unpack(pack(matrix), 3), matrix)


@pytest.mark.slow
@given(st.integers(1, 20), st.integers(0, 1000))
def test_symmetric_matrix_comes_back_and_solves_as_before(dim: int, seed: int) -> None:
    z = torch.randn(dim + 3, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    matrix = z.T @ z
    packed = pack(matrix)
    assert packed.shape == (triangle_size(dim),)
    back = unpack(packed, dim)
    assert torch.equal(back.tril(), matrix.tril())
    assert torch.equal(back, back.T)
    for solve in (torch.linalg.cholesky, torch.linalg.eigvalsh):
        assert torch.equal(solve(back), solve(matrix))
