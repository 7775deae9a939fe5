"""NC1 to NC4 and prototypes against plain loops in float64, and at the ends where their values are known."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedframe.metrics.collapse import class_means, collapse
from fedframe.metrics.prototypes import consistency
from fedframe.models import frames


def plain_collapse(
    h: np.ndarray, y: np.ndarray, predicted: np.ndarray, W: np.ndarray
) -> dict[str, float]:  # Papyan et al., as printed
    present = sorted(set(y.tolist()))
    C = len(present)
    mu = {c: np.mean([h[i] for i in range(len(h)) if y[i] == c], axis=0) for c in present}
    mu_G = sum(mu.values()) / C
    S_W = np.zeros((h.shape[1], h.shape[1]))
    S_B = np.zeros_like(S_W)
    for c in present:
        mine = [h[i] for i in range(len(h)) if y[i] == c]
        S_W += sum(np.outer(each - mu[c], each - mu[c]) for each in mine) / len(mine) / C
        S_B += np.outer(mu[c] - mu_G, mu[c] - mu_G) / C
    M = np.stack([mu[c] - mu_G for c in present], axis=1)  # columns
    lengths = [np.linalg.norm(mu[c] - mu_G) for c in present]
    angles = []
    for a in range(C):
        for b in range(C):
            if a != b:
                angles.append(abs(M[:, a] @ M[:, b] / (lengths[a] * lengths[b]) + 1 / (C - 1)))
    V = W[present]
    nearest = [min(present, key=lambda c: float(np.sum((each - mu[c]) ** 2))) for each in h]
    return {
        "nc1": float(np.trace(S_W @ np.linalg.pinv(S_B, rcond=1e-10)) / C),
        "nc2_norms": float(np.std(lengths) / np.mean(lengths)),
        "nc2_angles": float(np.mean(angles)),
        "nc3": float(np.sum((V.T / np.linalg.norm(V) - M / np.linalg.norm(M)) ** 2)),
        "nc4": float(np.mean([a != b for a, b in zip(nearest, predicted, strict=True)])),
    }


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(2, 12), st.booleans())
def test_collapse_equals_a_plain_loop_in_float64(seed: int, classes: int, dim: int, missing: bool) -> None:
    draw = np.random.default_rng(seed)
    y = np.concatenate([np.arange(classes), draw.integers(0, classes, 40)])
    if missing and classes > 2:
        y[y == 1] = 0  # a class that nobody has
    h = draw.normal(0, 1, (classes, dim))[y] + draw.normal(0, 0.3, (len(y), dim))
    h, W = h.astype(np.float32), draw.normal(0, 1, (classes, dim))
    predicted = draw.integers(0, classes, len(y))
    found = collapse(
        torch.from_numpy(h), torch.from_numpy(y), classes, torch.from_numpy(predicted), torch.from_numpy(W)
    )
    assert found is not None
    for name, value in plain_collapse(h.astype(np.float64), y, predicted, W).items():
        assert found[name] == pytest.approx(value, rel=1e-6, abs=1e-9), name


def test_collapsed_features_on_an_etf_are_zero_in_every_measure() -> None:
    etf = frames.simplex_etf(5, 16, torch.Generator().manual_seed(0)).double()
    y = torch.arange(5).repeat(7)
    found = collapse(3 * etf[y] + 1.7, y, 5, y, 0.2 * etf)  # a shift and a scale do not matter
    assert found is not None
    for name, value in found.items():
        assert value == pytest.approx(0, abs=1e-6), name


@given(st.integers(0, 1000), st.floats(0.1, 10))
@settings(max_examples=20, deadline=None)
def test_collapse_knows_no_scale_rotation_or_shift(seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(4).repeat(6)
    h = torch.randn(24, 9, generator=generator, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(9, 9, generator=generator, dtype=torch.float64))[0]
    one, other = collapse(h, y, 4), collapse(scale * h @ rotation + 0.5, y, 4)
    assert one is not None
    assert other is not None
    for name in ("nc1", "nc2_norms", "nc2_angles"):
        assert other[name] == pytest.approx(one[name], rel=1e-7, abs=1e-9)


def test_one_class_has_no_collapse_and_equal_means_no_spread_between() -> None:
    assert collapse(torch.randn(5, 3), torch.zeros(5, dtype=torch.int64), 4) is None
    found = collapse(torch.ones(4, 3), torch.tensor([0, 0, 1, 1]), 2)
    assert found is not None
    assert found["nc1"] is None
    assert found["nc2_norms"] is None


def test_class_vector_of_zeros_has_no_angles_and_a_classifier_of_zeros_no_direction() -> None:
    h, y = torch.randn(12, 5, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3
    one = collapse(h, y, 3, W=torch.tensor([[0.0] * 5, [1.0] * 5, [1.0, -1, 0, 0, 0]]))
    assert one is not None
    assert (one["nc2_classifier_norms"], one["nc2_classifier_angles"]) == (None, None)
    assert one["nc3"] is not None
    nothing = collapse(h, y, 3, W=torch.zeros(3, 5))
    assert nothing is not None
    assert nothing["nc3"] is None


def plain_consistency(prototypes: np.ndarray, held: np.ndarray) -> float:
    K, C, _ = prototypes.shape
    seen = [c for c in range(C) if held[:, c].any()]
    g = np.mean([np.mean([prototypes[k, c] for k in range(K) if held[k, c]], axis=0) for c in seen], axis=0)
    by_class = []
    for c in seen:
        cosines = []
        for a, b in combinations([k for k in range(K) if held[k, c]], 2):
            u, v = prototypes[a, c] - g, prototypes[b, c] - g
            cosines.append(u @ v / np.linalg.norm(u) / np.linalg.norm(v))
        if cosines:
            by_class.append(np.mean(cosines))
    return float(np.mean(by_class))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(2, 5))
def test_consistency_of_prototypes_equals_a_plain_loop(seed: int, clients: int, classes: int) -> None:
    draw = np.random.default_rng(seed)
    prototypes, held = draw.normal(0, 1, (clients, classes, 7)), draw.random((clients, classes)) < 0.7
    held[:2, :2] = True
    found = consistency(torch.from_numpy(prototypes), torch.from_numpy(held))
    assert found == pytest.approx(plain_consistency(prototypes, held), rel=1e-9, abs=1e-12)


def test_clients_that_agree_are_consistent_and_those_without_a_common_class_are_not_compared() -> None:
    same = torch.randn(1, 4, 6, generator=torch.Generator().manual_seed(1)).repeat(3, 1, 1)
    assert consistency(same, torch.ones(3, 4)) == pytest.approx(1)
    assert consistency(same[:2], torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1]])) is None
    assert consistency(same, torch.tensor([[1, 0, 0, 0]] * 3)) is None


def test_class_means_are_exact_for_every_class() -> None:
    h, y = torch.tensor([[1.0, 2], [3, 4], [5, 9]]), torch.tensor([0, 0, 2])
    means, counts = class_means(h, y, 3)
    assert means.tolist() == [[2, 3], [0, 0], [5, 9]]
    assert counts.tolist() == [2, 0, 1]
