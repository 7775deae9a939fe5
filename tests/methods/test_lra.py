from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedframe.core.model import Model
from fedframe.methods.parts.lra import (
    Messages,
    RelationalAugmentation,
    contrast,
    mine_relations,
    pearson,
    strongest_neighbours,
)
from tests.methods.toy import job_of, trained


def features(count: int, dim: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, generator=generator, dtype=torch.float64).relu()


def mining_objective(similarity: torch.Tensor, relations: torch.Tensor, weight: float, smooth: float = 1e-3) -> float:
    """What `mine_relations` lowers in every iteration."""
    eye = torch.eye(len(similarity), dtype=similarity.dtype)
    roots = torch.linalg.eigvalsh(relations @ relations.T + smooth * eye).clamp_min(0).sqrt()
    return float(0.5 * (similarity - similarity @ relations).square().sum() + 2 * weight * roots.sum())


def test_pearson_is_numpys_correlation() -> None:
    z = features(9, 20, 0)
    np.testing.assert_allclose(pearson(z).numpy(), np.corrcoef(z.numpy()), atol=1e-12)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.integers(3, 24), st.integers(4, 30), st.floats(0.05, 2.0), st.integers(0, 10_000))
def test_mining_lowers_its_objective_in_every_iteration(count: int, dim: int, weight: float, seed: int) -> None:
    similarity = pearson(features(count, dim, seed))
    values = [
        mining_objective(similarity, mine_relations(similarity, weight, iterations), weight)
        for iterations in range(1, 9)
    ]
    assert all(later <= earlier + 1e-7 * abs(earlier) for earlier, later in itertools.pairwise(values))


@settings(max_examples=15, deadline=None)
@given(st.integers(3, 8), st.integers(0, 1000))
def test_one_iteration_is_the_exact_minimiser_of_each_column(count: int, seed: int) -> None:
    similarity, weight = pearson(features(count, 12, seed)), 0.3
    found = mine_relations(similarity, weight, 1)
    assert float(found.diagonal().abs().max()) == 0.0
    for j in range(count):  # column j without its own entry: a plain ridge problem
        keep = [i for i in range(count) if i != j]
        left = similarity[:, keep]
        gram = left.T @ left + (2 * weight + 1e-6) * torch.eye(count - 1, dtype=torch.float64)
        expected = torch.linalg.solve(gram, left.T @ similarity[:, j])
        torch.testing.assert_close(found[keep, j], expected, atol=1e-9, rtol=1e-7)


def test_repeated_samples_do_no_harm_in_float32() -> None:
    z = features(6, 10, 1).float()
    relations = mine_relations(pearson(torch.cat([z, z, z])), 0.5, 4)
    assert bool(torch.isfinite(relations).all())


def test_contrast_equals_a_plain_loop() -> None:
    before, after = features(6, 10, 2), features(6, 10, 3)
    both = torch.cat([before, after]).numpy()
    similar = np.corrcoef(both) / 0.8
    total = 0.0
    for i in range(6):
        others = sum(math.exp(similar[i, j]) for j in range(12) if j != i)
        total -= math.log(math.exp(similar[i, 6 + i]) / others) / 6
    assert float(contrast(before, after, 0.8)) == pytest.approx(total, rel=1e-9)


def test_messages_equal_a_plain_loop_and_the_graph_matters() -> None:
    torch.manual_seed(0)
    layer, z = Messages(7, own_share=0.7).double(), features(5, 7, 4)
    torch.nn.init.normal_(layer.value.weight)
    layer.requires_grad_(False)
    graph = strongest_neighbours(mine_relations(pearson(z), 0.5, 2), 2)
    out = layer(z, graph)
    for i in range(5):
        neighbours = [j for j in range(5) if float(graph[i, j]) > 0]
        weights = [
            float(graph[i, j]) * math.exp(float(layer.receive(z[i]) @ layer.send(z[j])) / math.sqrt(7))
            for j in neighbours
        ]
        message = sum(w / sum(weights) * layer.value(z[j]) for w, j in zip(weights, neighbours, strict=True))
        torch.testing.assert_close(out[i], 0.7 * z[i] + 0.3 * message)
    other = graph.roll(1, 0)
    other.fill_diagonal_(0.0)
    assert not torch.allclose(layer(z, other), out)


def test_at_least_the_asked_number_of_neighbours_is_kept() -> None:
    strength = strongest_neighbours(mine_relations(pearson(features(12, 30, 5)), 0.5, 2), 3)
    assert bool(((strength > 0).sum(1) >= 3).all())
    assert float(strength.diagonal().abs().max()) == 0.0


def test_prediction_does_not_depend_on_the_batch_unless_asked_for() -> None:
    torch.manual_seed(0)
    model = Model(torch.nn.Identity(), 8, 3)
    z = torch.randn(10, 8).relu()
    for relational in (False, True):
        part = RelationalAugmentation(relational=relational)
        part.build(model)
        whole, half = part.transform(model, z, None), part.transform(model, z[:5], None)
        assert torch.equal(whole[:5], half) != relational


@pytest.mark.slow
def test_without_contrast_and_in_tiny_batches_training_still_runs(tmp_path: Path) -> None:
    for part in (RelationalAugmentation(contrast_weight=0.0), RelationalAugmentation()):
        server = trained(job_of(tmp_path / str(part.contrast_weight), part, batch=5), 2)
        assert bool(torch.isfinite(server.model).all())
    one = trained(job_of(tmp_path / "one", RelationalAugmentation(), batch=1), 1)
    assert bool(torch.isfinite(one.model).all())


def test_constant_features_correlate_with_nothing_whatever_rounding_leaves() -> None:
    rows = torch.tensor([0.1, 0.3, 1 / 3, 7.7])[:, None].repeat(1, 7)
    rows = torch.cat([rows, torch.randn(2, 7, generator=torch.Generator().manual_seed(0))]).requires_grad_()
    found = pearson(rows)
    assert torch.equal(found[:4], torch.zeros(4, 6))
    found.square().sum().backward()  # type: ignore[no-untyped-call]
    assert rows.grad is not None
    assert bool(rows.grad.isfinite().all())
    assert float(rows.grad[:4].abs().max()) == 0.0
