from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedframe.methods.closed_form import sums as module
from fedframe.methods.closed_form.ridge import fit_ridge, standardise
from fedframe.methods.closed_form.sums import Sums, stream_sums
from tests.methods.closed_form.plain import draw, pooled_ridge


def of(features: Tensor, labels: Tensor, classes: int, weights: Tensor | None = None) -> Sums:
    return stream_sums([(features, labels)], features.shape[1], classes, weights)


def scores(sums: Sums, features: Tensor, ridge: float | None = 0.01) -> Tensor:
    problem = standardise(sums)
    weight, bias = problem.head(fit_ridge(problem, ridge).coefficients)
    return features.double() @ weight.T + bias


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("panel", [3, 4, 1024])
def test_sums_are_those_of_a_loop_over_samples(monkeypatch: pytest.MonkeyPatch, panel: int, weighted: bool) -> None:
    monkeypatch.setattr(module, "PANEL", panel)
    features, labels = draw(0, 30, 7, 3)
    weights = torch.tensor([0.5, 2.0, 1.0]) if weighted else torch.ones(3)
    found = stream_sums(
        [(features[:11].double(), labels[:11]), (features[11:].double(), labels[11:])],
        7,
        3,
        weights if weighted else None,
    )
    v, u = torch.zeros(8, 8, dtype=torch.float64), torch.zeros(8, 3, dtype=torch.float64)
    for z, label in zip(features.double(), labels, strict=True):
        z1 = torch.cat([z, torch.ones(1, dtype=torch.float64)])
        v += float(weights[label]) * torch.outer(z1, z1)
        u[:, label] += float(weights[label]) * z1
    torch.testing.assert_close(found.matrix(), v)
    torch.testing.assert_close(found.cross, u)
    torch.testing.assert_close(found.counts, torch.bincount(labels, minlength=3) * weights.double())


# -- properties --------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(2, 5))
def test_any_split_among_clients_gives_the_model_of_the_pooled_data(seed: int, sizes: list[int], classes: int) -> None:
    features, labels = draw(seed, sum(sizes) + 2, 6, classes)
    sizes = [*sizes, 2]
    total = Sums.zeros(6, classes)
    for z, y in zip(features.double().split(sizes), labels.split(sizes), strict=True):  # type: ignore[no-untyped-call]
        total.add_(of(z, y, classes))
    weight, bias = pooled_ridge(features, labels, classes, 0.01)
    wanted = features.double() @ torch.from_numpy(weight).T + torch.from_numpy(bias)
    assert float((scores(total, features) - wanted).abs().max()) < 1e-8


def test_sums_that_were_rounded_to_be_sent_give_nearly_the_same_model() -> None:
    features, labels = draw(0, 400, 6, 3)
    total = Sums.zeros(6, 3)
    for z, y in zip(features.split(100), labels.split(100), strict=True):  # type: ignore[no-untyped-call]
        total.add_(of(z, y, 3).rounded())
    weight, bias = pooled_ridge(features, labels, 3, 0.01)
    wanted = features.double() @ torch.from_numpy(weight).T + torch.from_numpy(bias)
    assert float((scores(total, features) - wanted).abs().max()) < 1e-5


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.permutations(range(5)))
def test_the_order_of_arrival_does_not_matter(seed: int, order: list[int]) -> None:
    features, labels = draw(seed, 60, 5, 3)
    parts = [of(z, y, 3).rounded() for z, y in zip(features.split(12), labels.split(12), strict=True)]  # type: ignore[no-untyped-call]
    one, other = Sums.zeros(5, 3), Sums.zeros(5, 3)
    for part in parts:
        one.add_(part)
    for number in order:
        other.add_(parts[number])
    torch.testing.assert_close(scores(one, features), scores(other, features), rtol=0, atol=1e-10)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 50))
def test_a_client_that_joins_and_is_forgotten_leaves_the_model_as_it_was(seed: int, size: int) -> None:
    features, labels = draw(seed, 40 + size, 5, 3)
    stays, leaves = of(features[:40], labels[:40], 3).rounded(), of(features[40:], labels[40:], 3).rounded()
    total = Sums.zeros(5, 3)
    total.add_(stays)
    before = scores(total, features)
    total.add_(leaves)
    total.add_(leaves, times=-1)
    torch.testing.assert_close(scores(total, features), before, rtol=0, atol=1e-9)


def test_weights_of_one_are_no_weights() -> None:
    features, labels = draw(1, 50, 4, 3)
    torch.testing.assert_close(of(features, labels, 3).second, of(features, labels, 3, torch.ones(3)).second)
