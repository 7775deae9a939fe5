from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedframe.methods.closed_form.personal import (
    MUS,
    RidgeTowards,
    fit_personal,
    left_out_shifts,
    log_loss,
    log_scores,
    prior_shift,
)
from fedframe.methods.closed_form.ridge import fit_ridge, standardise
from tests.methods.closed_form.plain import draw
from tests.methods.closed_form.test_sums import of


def shared_and_client(seed: int, n: int, dim: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Standardised features and labels of a client, and the classifier and class frequencies of all clients."""
    features, labels = draw(seed, 400 + n, dim, 4)
    problem = standardise(of(features, labels, 4))
    coefficients = fit_ridge(problem, 0.01).coefficients
    x = (features.double() - problem.mean) * problem.inverse_deviation
    bias, priors = problem.counts / problem.total, problem.counts / problem.total
    return x[400:], labels[400:], coefficients.T, bias, priors


@pytest.mark.parametrize(("n", "dim"), [(9, 14), (30, 6)])
@pytest.mark.parametrize("mu", [0.01, 1.0, 30.0])
def test_left_out_errors_are_those_of_fitting_without_each_sample(n: int, dim: int, mu: float) -> None:
    x, labels, weight, bias, _ = shared_and_client(0, n, dim)
    x = torch.cat([x, torch.ones(n, 1, dtype=torch.float64)], 1)
    shared = torch.cat([weight, bias[:, None]], 1).T
    y = torch.nn.functional.one_hot(labels, 4).double()
    fits = RidgeTowards(x, y - x @ shared)
    found, unchanged = fits.left_out_errors((mu, math.inf))
    assert torch.equal(unchanged, fits.residuals)
    penalty = mu * float(x.square().sum() / n) * torch.eye(dim + 1, dtype=torch.float64)
    for i in range(n):
        rest = [j for j in range(n) if j != i]
        a, b = x[rest], y[rest]
        own = torch.linalg.solve(a.T @ a + penalty, a.T @ b + penalty @ shared)
        torch.testing.assert_close(found[i], y[i] - x[i] @ own, rtol=1e-7, atol=1e-9)
    whole = torch.linalg.solve(x.T @ x + penalty, x.T @ y + penalty @ shared)
    torch.testing.assert_close(shared + fits.change(mu), whole, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("known", [[0.4, 0.3, 0.2, 0.1], [0.4, 0.0, 0.6, 0.0], [0.6, 0.4, 0.0, 0.0]])
def test_the_shift_of_a_left_out_sample_is_that_of_the_other_samples(known: list[float]) -> None:
    """Also where the client has a class that has no prior: noise has hidden it, or who had it was forgotten."""
    labels, priors = torch.tensor([0, 0, 0, 1, 3]), torch.tensor(known, dtype=torch.float64)
    counts = torch.bincount(labels, minlength=4).double()
    found = left_out_shifts(labels, counts, priors)
    for i in range(5):
        rest = torch.bincount(labels[[j for j in range(5) if j != i]], minlength=4).double()
        torch.testing.assert_close(found[i], prior_shift(rest, priors))


def test_a_client_with_the_shared_frequencies_is_not_shifted() -> None:
    priors = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    assert prior_shift(20 * priors, priors).abs().max() < 1e-12


def test_a_class_that_nobody_has_is_not_shifted_and_one_that_the_client_lacks_stays_possible() -> None:
    found = prior_shift(torch.tensor([30.0, 0.0, 0.0]), torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64))
    assert found[0] > 0 > found[1] > -5
    assert found[2] == 0


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(st.integers(0, 999), st.integers(0, 25), st.booleans())
def test_by_its_own_measure_a_personal_model_is_never_worse_than_the_shared_one(seed: int, n: int, shift: bool) -> None:
    x, labels, weight, bias, priors = shared_and_client(seed, n, 6)
    own = fit_personal(x, labels, weight, bias, priors, 0.1, shift)
    assert own.loss <= own.shared_loss
    assert bool(own.weight.isfinite().all())
    assert shift or own.shift.abs().max() == 0
    if own.mu == math.inf:
        assert torch.equal(own.weight, weight.double())
        assert torch.equal(own.bias, bias.double())
    assert own.mu in MUS


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(st.integers(0, 999), st.integers(1, 25), st.sets(st.integers(0, 3), max_size=3))
def test_the_losses_that_are_compared_are_those_of_fitting_without_each_sample(
    seed: int, n: int, unknown: set[int]
) -> None:
    """By a loop that fits, counts and shifts without each sample: no model has seen what it is scored on."""
    x, labels, weight, bias, priors = shared_and_client(seed, n, 6)
    priors = torch.tensor([0.0 if c in unknown else float(p) for c, p in enumerate(priors)], dtype=torch.float64)
    leverage = 0.1
    own = fit_personal(x, labels, weight, bias, priors, leverage)
    whole = torch.cat([x, torch.ones(n, 1, dtype=torch.float64)], 1)
    shared, y = torch.cat([weight, bias[:, None]], 1).T, torch.nn.functional.one_hot(labels, 4).double()
    unit, losses = float(whole.square().sum() / n), []
    for i in range(n):
        rest = [j for j in range(n) if j != i]
        head = shared
        if not math.isinf(own.mu):
            penalty = own.mu * unit * torch.eye(len(shared), dtype=torch.float64)
            a = whole[rest]
            head = torch.linalg.solve(a.T @ a + penalty, a.T @ y[rest] + penalty @ shared)
        counts = torch.bincount(labels[rest], minlength=4).double()
        shift = prior_shift(counts, priors) if bool(own.shift.any()) else torch.zeros(4, dtype=torch.float64)
        scores = y[i] - (y[i] - whole[i] @ head) / (1 - leverage)  # the shared classifier has seen the sample
        losses.append(log_loss(scores[None], labels[i : i + 1], own.sharpness, shift))
    assert own.loss == pytest.approx(sum(losses) / n, rel=1e-6, abs=1e-9)
    assert own.loss <= own.shared_loss


def test_a_client_of_one_sample_keeps_the_shared_model_or_a_finite_one() -> None:
    x, labels, weight, bias, priors = shared_and_client(1, 1, 6)
    own = fit_personal(x, labels, weight, bias, priors)
    assert bool((own.sharpness * log_scores(x @ own.weight.T + own.bias) + own.shift).isfinite().all())


def test_a_client_of_two_classes_gains_from_its_own_classifier() -> None:
    x, labels, weight, bias, priors = shared_and_client(2, 200, 3)
    some = labels < 2
    x, labels = x[some], labels[some]
    own = fit_personal(x[:40], labels[:40], weight, bias, priors)
    before = (x[40:] @ weight.T + bias).argmax(1) == labels[40:]
    after = (own.sharpness * log_scores(x[40:] @ own.weight.T + own.bias) + own.shift).argmax(1) == labels[40:]
    assert int(after.sum()) > int(before.sum())


def test_the_loss_that_is_compared_is_the_log_loss_of_shifted_scores() -> None:
    scores, labels = torch.tensor([[0.7, 0.3], [-1.0, 2.0]], dtype=torch.float64), torch.tensor([0, 1])
    low = 0.001 * math.exp(0.001 * -1.001)  # what is below the floor keeps its order, and hardly more
    first, second = 0.7**3 / (0.7**3 + 0.3**3 * 2), 2**3 * 2 / (low**3 + 2**3 * 2)
    shift = torch.tensor([0.0, math.log(2)], dtype=torch.float64)
    assert log_loss(scores, labels, 3.0, shift) == pytest.approx(-(math.log(first) + math.log(second)) / 2)


def test_the_order_of_classes_by_log_scores_is_that_of_the_scores() -> None:
    scores = torch.tensor([[-0.3, -0.1, -0.2], [0.5, 0.2, 0.9]])
    assert torch.equal(log_scores(scores).argsort(), scores.argsort())
