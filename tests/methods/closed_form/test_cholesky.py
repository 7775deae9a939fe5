from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedframe.methods.closed_form import cholesky
from fedframe.methods.closed_form.cholesky import (
    blocked_cholesky_,
    factored,
    mirror_,
    solve_factored,
    trace_of_inverse,
)


def positive(dim: int, seed: int) -> Tensor:
    """A symmetric matrix inside a larger one, as the sums of features beside those of the constant."""
    half = torch.randn(dim, dim + 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    whole = torch.zeros(dim + 1, dim + 1, dtype=torch.float64)
    whole[:dim, :dim] = half @ half.T + 0.1 * torch.eye(dim, dtype=torch.float64)
    return mirror_(whole[:dim, :dim])


@pytest.fixture(autouse=True)
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cholesky, "BLOCK", 4)
        yield


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 40), st.integers(1, 7), st.integers(0, 999))
def test_the_blocked_factor_is_the_cholesky_factor(dim: int, block: int, seed: int) -> None:
    matrix = positive(dim, seed)
    wanted = torch.linalg.cholesky(matrix)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cholesky, "BLOCK", block)
        assert blocked_cholesky_(matrix)
        torch.testing.assert_close(matrix.tril(), wanted)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 30), st.integers(1, 5), st.integers(0, 999), st.floats(1e-3, 10))
def test_systems_are_solved_in_the_place_of_the_matrix_which_is_then_as_it_was(
    dim: int, columns: int, seed: int, penalty: float
) -> None:
    matrix = positive(dim, seed)
    before, right = matrix.clone(), torch.randn(dim, columns, dtype=torch.float64)
    raised = before + penalty * torch.eye(dim, dtype=torch.float64)
    with factored(matrix, penalty) as factor:
        assert factor is not None
        torch.testing.assert_close(solve_factored(factor, right), torch.linalg.solve(raised, right))
        assert trace_of_inverse(factor) == pytest.approx(float(torch.linalg.inv(raised).trace()))
    assert torch.equal(matrix, before)


def test_a_matrix_without_a_factor_is_noticed_and_left_as_it_was() -> None:
    matrix = positive(11, 0)
    matrix[9, 9] = -1.0
    before = matrix.clone()
    with factored(matrix, 1e-3) as factor:
        assert factor is None
    assert torch.equal(matrix, before)


def test_what_fails_inside_leaves_the_matrix_as_it_was() -> None:
    matrix = positive(11, 0)
    before = matrix.clone()
    with pytest.raises(KeyError), factored(matrix, 1e-3):
        raise KeyError
    assert torch.equal(matrix, before)


def test_a_mirrored_matrix_is_symmetric_to_the_last_bit_and_keeps_its_upper_triangle() -> None:
    matrix = torch.randn(11, 11, generator=torch.Generator().manual_seed(0))
    upper = matrix.triu()
    assert mirror_(matrix) is matrix
    assert torch.equal(matrix, matrix.T)
    assert torch.equal(matrix.triu(), upper)
