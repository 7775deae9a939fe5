from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedframe.methods.closed_form.private import (
    LARGEST,
    LONGEST,
    SHARE,
    bounded,
    from_release,
    noise_in_v,
    noise_ridge,
    solve_noisy,
    to_release,
)
from fedframe.methods.closed_form.sums import Sums
from fedframe.util.triangles import pack
from tests.methods.closed_form.plain import draw
from tests.methods.closed_form.test_sums import of


def plain_release(x: torch.Tensor, label: int, classes: int) -> torch.Tensor:
    """r of one sample, number by number."""
    z = [*x.tolist(), 1.0]
    found = []
    for i in range(len(z)):
        for j in range(i + 1):
            found.append(math.sqrt(SHARE) * z[i] * z[j] * (1.0 if i == j else math.sqrt(2)) / LARGEST)
    for value in z:
        found += [math.sqrt(1 - SHARE) * value * (c == label) / math.sqrt(LARGEST) for c in range(classes)]
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.integers(0, 9999), st.integers(1, 12), st.integers(1, 6), st.floats(0.01, 50))
def test_one_sample_more_or_less_moves_a_release_by_at_most_one(seed: int, n: int, dim: int, scale: float) -> None:
    features, labels = draw(seed, n, dim, 3)
    x = bounded(scale * features).double()
    assert float(x.norm(dim=1).max()) <= LONGEST * (1 + 1e-6)
    whole = to_release(of(x, labels, 3))
    for i in range(n):
        rest = [j for j in range(n) if j != i]
        without = to_release(of(x[rest], labels[rest], 3)) if rest else torch.zeros_like(whole)
        moved = whole - without
        torch.testing.assert_close(moved, plain_release(x[i], int(labels[i]), 3), rtol=1e-6, atol=1e-7)
        assert float(moved.norm()) <= 1 + 1e-6
    assert float(whole.norm()) / n <= 1 + 1e-6  # a client's mean


@pytest.mark.parametrize("x", [[LONGEST, 0.0, 0.0], [LONGEST / math.sqrt(3)] * 3])
def test_the_bound_is_reached_by_features_of_full_length(x: list[float]) -> None:
    assert float(plain_release(torch.tensor(x, dtype=torch.float64), 1, 3).norm()) == pytest.approx(1.0)


def test_short_features_are_left_alone() -> None:
    x = torch.tensor([[0.3, 0.4], [30.0, 40.0], [0.0, 0.0]])
    torch.testing.assert_close(bounded(x), torch.tensor([[0.3, 0.4], [1.2, 1.6], [0.0, 0.0]]))


def test_a_release_gives_back_the_sums() -> None:
    features, labels = draw(0, 20, 5, 3)
    sums = of(features.double(), labels, 3)
    found = from_release(to_release(sums), 6, 3)
    torch.testing.assert_close(found.second, sums.second.double())
    torch.testing.assert_close(found.cross, sums.cross.double())


def test_noise_in_v_is_as_large_as_it_says_and_the_ridge_is_above_its_eigenvalues() -> None:
    rows = 120
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        release = 0.7 * torch.randn(rows * (rows + 1) // 2 + rows * 3, dtype=torch.float64, generator=generator)
        v = from_release(release, rows, 3).matrix()
        off = v[torch.ones(rows, rows).tril(-1).bool()]
        assert float(off.std()) == pytest.approx(noise_in_v(0.7), rel=0.05)
        assert float(v.diagonal().std()) == pytest.approx(math.sqrt(2) * noise_in_v(0.7), rel=0.3)
        assert float(torch.linalg.eigvalsh(v)[0]) > -noise_ridge(0.7, rows)


def test_without_noise_the_solution_is_ridge_regression_of_a_loop() -> None:
    features, labels = draw(1, 60, 4, 3)
    x = bounded(features).double()
    fit, bias = solve_noisy(of(x, labels, 3), 0.0, penalty=2.5)
    z = torch.cat([x, torch.ones(60, 1, dtype=torch.float64)], 1)
    gram, cross = torch.zeros(5, 5, dtype=torch.float64), torch.zeros(5, 3, dtype=torch.float64)
    for row, label in zip(z, labels.tolist(), strict=True):
        target = torch.tensor([float(c == label) - 1 / 3 for c in range(3)], dtype=torch.float64)
        gram += torch.outer(row, row)
        cross += torch.outer(row, target)
    wanted = torch.linalg.solve(gram + 2.5 * torch.eye(5, dtype=torch.float64), cross)
    torch.testing.assert_close(fit.coefficients, wanted[:-1])
    torch.testing.assert_close(bias, wanted[-1] + 1 / 3)
    freedom = (gram @ torch.linalg.inv(gram + 2.5 * torch.eye(5, dtype=torch.float64))).trace() / 60
    assert fit.leverage == pytest.approx(float(freedom))


def test_with_noise_far_above_the_signal_the_solution_is_still_finite() -> None:
    features, labels = draw(2, 5, 30, 3)
    release = to_release(of(bounded(features).double(), labels, 3))
    noisy = release + 100 * torch.randn(len(release), generator=torch.Generator().manual_seed(0)).double()
    fit, bias = solve_noisy(from_release(noisy, 31, 3), 100.0)
    assert bool(fit.coefficients.isfinite().all())
    assert bool(bias.isfinite().all())
    underestimated, _ = solve_noisy(from_release(noisy, 31, 3), 1.0)  # V is indefinite even with the ridge
    assert bool(underestimated.coefficients.isfinite().all())


def test_directions_that_noise_has_turned_are_raised_to_the_noise() -> None:
    values = torch.tensor([20.0, -6.0, 30.0], dtype=torch.float64)  # the second is below minus the ridge
    cross = torch.arange(6, dtype=torch.float64).reshape(3, 2)
    fit, bias = solve_noisy(Sums(pack(values.diag()), cross), 1.0, penalty=5.0)
    wanted = torch.cat([cross[:1] / 25, cross[1:2] / noise_in_v(1.0)])
    torch.testing.assert_close(fit.coefficients, wanted)
    torch.testing.assert_close(bias, (cross[2] - 30 / 2) / 35 + 1 / 2)
