"""Numbers of papers' figures against plain loops in float64, and at the ends where they are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from fedframe.core.measures import mean_f1
from fedframe.metrics.classifier import frame_statistics
from fedframe.metrics.degeneration import zero_shares
from fedframe.metrics.scatter import client_gap, distance_spread
from fedframe.models import frames


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(2, 8))
def test_lengths_and_angles_equal_a_plain_loop(seed: int, classes: int, dim: int) -> None:
    W = np.random.default_rng(seed).normal(0, 1, (classes, dim))
    norms = [math.sqrt(sum(v * v for v in row)) for row in W]
    angles = []
    for a in range(classes):
        for b in range(a):
            cosine = sum(x * y for x, y in zip(W[a], W[b], strict=True)) / (norms[a] * norms[b])
            angles.append(math.degrees(math.acos(cosine)))
    found = frame_statistics(torch.from_numpy(W))
    assert found["norm_mean"] == pytest.approx(sum(norms) / classes)
    assert found["norm_variance"] == pytest.approx(sum((n - sum(norms) / classes) ** 2 for n in norms) / classes)
    mean = sum(angles) / len(angles)
    assert found["angle_mean"] == pytest.approx(mean)
    assert found["angle_variance"] == pytest.approx(sum((a - mean) ** 2 for a in angles) / len(angles), abs=1e-8)


def test_sparse_etf_has_one_length_and_one_angle() -> None:
    W = frames.sparse_etf(10, 64, 0.6, torch.Generator().manual_seed(0), norm=1.5)
    found = frame_statistics(W)
    assert found["norm_mean"] == pytest.approx(1.5)
    assert found["norm_variance"] < 1e-9
    assert found["angle_mean"] == pytest.approx(math.degrees(math.acos(-1 / 9)), abs=1e-3)
    assert found["angle_variance"] < 1e-6


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 8))
def test_zeros_by_rank_equal_a_plain_loop(seed: int, classes: int, dim: int) -> None:
    draw = np.random.default_rng(seed)
    means, W = (
        draw.normal(0, 1, (classes, dim)),
        draw.normal(0, 1, (classes, dim)) * draw.integers(0, 2, (classes, dim)),
    )
    found = zero_shares(torch.from_numpy(W), torch.from_numpy(means))
    for rank in range(dim):
        zeros = 0
        for c in range(classes):
            order = sorted(range(dim), key=lambda i: -abs(means[c, i]))
            zeros += W[c, order[rank]] == 0
        assert float(found[rank]) == pytest.approx(zeros / classes)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(3, 8))
def test_spread_of_distances_equals_a_plain_loop(seed: int, count: int) -> None:
    points = np.random.default_rng(seed).normal(0, 1, (count, 4))
    distances = [math.dist(points[a], points[b]) for a in range(count) for b in range(a)]
    wanted = float(np.std(distances) / np.mean(distances))
    assert distance_spread(torch.from_numpy(points)) == pytest.approx(wanted, rel=1e-9)


def test_spread_of_distances_of_a_simplex_is_zero_and_of_too_few_points_none() -> None:
    assert distance_spread(torch.eye(5)) == pytest.approx(0.0, abs=1e-12)
    assert distance_spread(torch.eye(2)) is None
    assert distance_spread(torch.ones(4, 2)) is None


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 3))
def test_gap_between_clients_equals_a_plain_loop(seed: int, clients: int) -> None:
    draw = np.random.default_rng(seed)
    labels = np.array([0, 0, 0, 1, 1, 4, 4, 4])
    features = draw.normal(0, 1, (clients, len(labels), 3))
    ratios = []
    for c in (0, 1, 4):
        for a in range(clients):
            for b in range(a):
                mine = {k: [features[k, i] for i in range(len(labels)) if labels[i] == c] for k in (a, b)}
                means = {k: sum(mine[k]) / len(mine[k]) for k in (a, b)}
                squares = [math.dist(each, means[k]) ** 2 / len(mine[k]) for k in (a, b) for each in mine[k]]
                ratios.append(math.dist(means[a], means[b]) / math.sqrt(sum(squares) / 2))
    found = client_gap(torch.from_numpy(features), torch.from_numpy(labels))
    assert found == pytest.approx(sum(ratios) / len(ratios), rel=1e-9)


def test_gap_is_zero_for_the_same_model_and_none_for_one_client() -> None:
    features, labels = (
        torch.randn(1, 6, 3, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0, 0, 0, 1, 1, 1]),
    )
    assert client_gap(features.expand(2, 6, 3), labels) == 0.0
    assert client_gap(features, labels) is None


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_f1_is_that_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    labels, predicted = zip(*pairs, strict=True)
    confusion = np.zeros((5, 5), dtype=np.int64)
    for pair in pairs:
        confusion[pair] += 1
    assert mean_f1(confusion) == pytest.approx(f1_score(labels, predicted, average="macro"))
    assert mean_f1(confusion, weighted=True) == pytest.approx(f1_score(labels, predicted, average="weighted"))
