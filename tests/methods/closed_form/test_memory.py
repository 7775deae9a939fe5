"""How much memory the closed form takes beside its sums, counted in matrices of all features by all features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from fedframe.methods.closed_form import cholesky, ridge, sums
from fedframe.methods.closed_form.long_tail import equal_priors
from fedframe.methods.closed_form.means_only import sums_from_means
from fedframe.methods.closed_form.ridge import Problem, fit_ridge, standardise
from fedframe.methods.closed_form.sums import Sums, stream_sums
from tests.methods.closed_form.plain import draw

DIM, BLOCK = 512, 32
MATRIX = 8 * DIM**2  # bytes: 2.1 GB for 16,384 features
BLOCKS = 6 * BLOCK / DIM  # what is held of single blocks, in matrices


def peak(work: Callable[[], Any]) -> tuple[float, Any]:
    """The most that was held at once of what `work` has allocated, in matrices; and what it returns.

    Every allocation of torch counts, those inside its functions as well.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        found = work()
    assert seen.profiler is not None
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most / MATRIX, found


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were too many features for eigenvectors."""
    monkeypatch.setattr(cholesky, "BLOCK", BLOCK)
    monkeypatch.setattr(sums, "PANEL", BLOCK)
    monkeypatch.setattr(ridge, "LARGEST_EIGH", 1)


def total() -> Sums:
    features, labels = draw(0, 100, DIM, 3)
    return stream_sums([(features, labels)], DIM, 3)


@pytest.fixture
def problem() -> Problem:
    return standardise(total())


def test_the_count_sees_copies_within_torch() -> None:
    matrix = torch.eye(DIM + 1, dtype=torch.float64)
    found, _ = peak(lambda: torch.linalg.solve_triangular(matrix[1:, 1:], matrix[1:, :2], upper=False))
    assert 1 < found < 1.1


def test_sums_take_two_triangles_and_a_batch() -> None:
    found, _ = peak(total)
    assert 1 <= found < 1 + BLOCKS + 0.3  # the batch


def test_the_problem_takes_the_one_matrix_that_it_is() -> None:
    given = total()
    found, _ = peak(lambda: standardise(given))
    assert 1 <= found < 1 + BLOCKS


@pytest.mark.parametrize("strength", [0.01, None])
def test_its_solution_and_cross_validation_take_blocks_alone(problem: Problem, strength: float | None) -> None:
    found, fit = peak(lambda: fit_ridge(problem, strength))
    assert found < BLOCKS
    assert fit.coefficients.abs().max() > 0


def test_equal_priors_take_one_matrix_more(problem: Problem) -> None:
    found, _ = peak(lambda: equal_priors(problem, 0.01))
    assert found < 1 + BLOCKS


def test_class_means_take_a_matrix_and_a_triangle() -> None:
    means = torch.randn(4, 3, DIM, dtype=torch.float64)
    found, _ = peak(lambda: sums_from_means(torch.full((4, 3), 5.0), means))
    assert found < 1.5 + BLOCKS
