from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedframe.methods.closed_form import cholesky
from fedframe.methods.closed_form import ridge as module
from fedframe.methods.closed_form.ridge import (
    RIDGES,
    ByCholesky,
    ByEigenvalues,
    fit_ridge,
    solve_ridge,
    standardise,
)
from tests.methods.closed_form.plain import draw, left_out_error, pooled_ridge
from tests.methods.closed_form.test_sums import of, scores


@pytest.mark.parametrize("classes", [2, 3, 1000])
@pytest.mark.parametrize("ridge", [1e-4, 0.1])
def test_the_classifier_from_sums_is_ridge_regression_on_pooled_data(classes: int, ridge: float) -> None:
    features, labels = draw(0, 1500 if classes == 1000 else 80, 12, classes)
    problem = standardise(of(features, labels, classes).rounded())
    weight, bias = problem.head(fit_ridge(problem, ridge).coefficients)
    wanted, wanted_bias = pooled_ridge(features, labels, classes, ridge)
    found = features.double() @ weight.T + bias
    assert np.abs(found.numpy() - (features.double().numpy() @ wanted.T + wanted_bias)).max() < 1e-5


def test_without_a_penalty_the_smallest_solution_is_found() -> None:
    x = torch.randn(5, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.randn(5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(solve_ridge(x.T @ x, x.T @ y, 0.0), torch.linalg.pinv(x) @ y)


# -- generalised cross-validation --------------------------------------------------------------------------------------
def test_gcv_equals_its_definition_on_pooled_data() -> None:
    features, labels = draw(3, 70, 8, 3)
    problem = standardise(of(features.double(), labels, 3))
    by_eigenvalues = ByEigenvalues(problem)
    z, y = features.double().numpy(), np.eye(3)[labels.numpy()]
    x = np.hstack([(z - z.mean(0)) / z.std(0), np.ones((70, 1))])
    for ridge in (1e-3, 0.1, 1.0):
        hat = x @ np.linalg.inv(x.T @ x + ridge * 70 * np.diag([1.0] * 8 + [0.0])) @ x.T
        wanted = np.square(y - hat @ y).sum() / 70 / (1 - np.trace(hat) / 70) ** 2
        assert by_eigenvalues.gcv(ridge) == pytest.approx(wanted, rel=1e-9)
        assert by_eigenvalues.fit(ridge).leverage == pytest.approx(np.trace(hat) / 70)


@pytest.mark.parametrize("seed", range(3))
def test_gcv_is_close_to_real_leave_one_out_and_chooses_as_well(seed: int) -> None:
    features, labels = draw(seed, 60, 20, 3)
    score = ByEigenvalues(standardise(of(features.double(), labels, 3))).gcv
    real = {ridge: left_out_error(features, labels, 3, ridge) for ridge in RIDGES[20::5]}
    for ridge, wanted in real.items():
        assert score(ridge) == pytest.approx(wanted, rel=0.15)
    chosen = min(real, key=score)
    assert real[chosen] < 1.03 * min(real.values())


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 999), st.integers(16, 60), st.sampled_from(RIDGES[20:]), st.integers(1, 5))
def test_gcv_by_cholesky_equals_gcv_by_eigenvalues(seed: int, n: int, ridge: float, block: int) -> None:
    features, labels = draw(seed, n, 12, 3)
    problem = standardise(of(features.double(), labels, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cholesky, "BLOCK", block)
        one, other = ByCholesky(problem), ByEigenvalues(problem)
        assert one.gcv(ridge) == pytest.approx(other.gcv(ridge), rel=1e-6)
        assert one.fit(ridge).leverage == pytest.approx(other.fit(ridge).leverage, rel=1e-6)
        torch.testing.assert_close(one.fit(ridge).coefficients, other.fit(ridge).coefficients, rtol=1e-6, atol=1e-8)


def test_wide_features_find_nearly_the_same_ridge_without_eigenvectors(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = draw(5, 80, 40, 3)
    problem = standardise(of(features, labels, 3))
    exact = fit_ridge(problem).ridge
    monkeypatch.setattr(module, "LARGEST_EIGH", 1)
    near = fit_ridge(problem)
    assert exact / 4 < near.ridge < 4 * exact
    wanted = solve_ridge(problem.gram, problem.cross, near.ridge * problem.total)
    torch.testing.assert_close(near.coefficients, wanted)


# -- unusual data ------------------------------------------------------------------------------------------------------
def test_dead_and_duplicate_features_do_no_harm() -> None:
    features, labels = draw(2, 90, 6, 3)
    dead = torch.cat([features, torch.zeros(90, 2), torch.full((90, 1), 7.3)], 1)
    plain, with_dead = scores(of(features, labels, 3).rounded(), features), scores(of(dead, labels, 3).rounded(), dead)
    torch.testing.assert_close(plain, with_dead, rtol=0, atol=1e-5)
    twice = torch.cat([features, features], 1)
    found = scores(of(twice, labels, 3).rounded(), twice, None)
    assert bool(found.isfinite().all())
    assert (
        float((found.argmax(1) == labels).double().mean()) >= float((plain.argmax(1) == labels).double().mean()) - 0.05
    )


@pytest.mark.parametrize("size", [1.0, 30.0, 1000.0])
@pytest.mark.parametrize("count", [5, 40, 400])
def test_cross_validation_does_not_see_what_rounding_makes_of_constants(size: float, count: int) -> None:
    """As of images with a black border, or of dead units behind a net, in sums that were sent in float32."""
    features, labels = draw(2, 90, 6, 3)
    constant = size * (1 + torch.rand(1, count, generator=torch.Generator().manual_seed(3)))
    dead = torch.cat([features, constant.repeat(90, 1)], 1)
    plain = fit_ridge(standardise(of(features, labels, 3).rounded(), shortened=True))
    found = fit_ridge(standardise(of(dead, labels, 3).rounded(), shortened=True))
    assert found.ridge == plain.ridge
    torch.testing.assert_close(found.coefficients[:6], plain.coefficients, rtol=1e-5, atol=1e-7)
    assert found.coefficients[6:].abs().max() == 0


@pytest.mark.parametrize("shortened", [True, False])
def test_a_feature_that_only_rounding_moves_is_dead(shortened: bool) -> None:
    """Rounded sums, or the last bit of a float32 that is computed in another order, are no variance."""
    features, labels = draw(2, 90, 6, 3)
    generator = torch.Generator().manual_seed(3)
    constant = (3 + 1000 * torch.rand(1, 40, generator=generator)).repeat(90, 1)
    if not shortened:
        constant *= 1 + 2**-23 * torch.randint(-1, 2, (90, 40), generator=generator)
    dead = torch.cat([features, constant], 1)
    sums = of(dead, labels, 3)
    problem = standardise(sums.rounded() if shortened else sums, shortened)
    assert problem.inverse_deviation[6:].abs().max() == 0
    assert problem.inverse_deviation[:6].min() > 0
    assert problem.gram[6:].abs().max() == problem.cross[6:].abs().max() == 0


def test_one_sample_alone_gives_its_class() -> None:
    features, labels = torch.tensor([[0.5, -1.0]]), torch.tensor([1])
    found = scores(of(features, labels, 3), features, None)
    assert bool(found.isfinite().all())
    assert found.argmax(1).tolist() == [1]


def test_a_class_that_nobody_has_scores_nothing() -> None:
    features, labels = draw(4, 60, 5, 2)
    found = scores(of(features, labels, 4), features)
    assert found[:, 2:].abs().max() == 0
    torch.testing.assert_close(found[:, :2], scores(of(features, labels, 2), features))


def test_sums_of_nothing_are_refused() -> None:
    from fedframe.methods.closed_form.sums import Sums

    with pytest.raises(ValueError, match="no samples"):
        standardise(Sums.zeros(3, 2))
