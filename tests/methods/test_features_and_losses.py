"""Transforms, losses, FFC and memory vectors against plain references."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from fedframe.core.model import Model
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.methods.parts.features import Normalise, Projection, Temperature
from fedframe.methods.parts.fedetf_stage import AlternatingAdaptation
from fedframe.methods.parts.ffc import FFC, least_squares
from fedframe.methods.parts.frame_head import SimplexETF
from fedframe.methods.parts.gmv import GlobalMemory
from fedframe.methods.parts.losses import BalancedCrossEntropy, SquaredError
from fedframe.methods.recipes import make_method
from tests.helpers import blobs, nothing
from tests.methods.plain import batches, plain_model
from tests.methods.toy import job_of, trained


def work_with(counts: list[int]) -> Any:
    return SimpleNamespace(class_counts=torch.tensor(counts), scratch={}, start=torch.zeros(1))


def test_squared_error_is_the_mean_over_classes() -> None:
    logits, labels = torch.randn(5, 4, dtype=torch.float64), torch.tensor([0, 3, 1, 2, 2])
    plain = 0.0
    for i in range(5):
        for c in range(4):
            plain += (float(logits[i, c]) - (1.0 if c == int(labels[i]) else 0.0)) ** 2 / 4 / 5
    assert float(SquaredError().loss(logits, labels, work_with([1] * 4))) == pytest.approx(plain, rel=1e-12)


@pytest.mark.parametrize("missing", ["mask", "one"])
@pytest.mark.parametrize("gamma", [0.5, 1.0])
def test_balanced_cross_entropy_equals_its_formula(missing: Any, gamma: float) -> None:
    counts = [7, 0, 2, 1]
    part, context = BalancedCrossEntropy(gamma=gamma, missing=missing), work_with(counts)
    part.begin(context)
    logits, labels = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 2, 3, 0, 0, 2])
    plain = 0.0
    for i in range(6):
        n = [max(c, 1) if missing == "one" else c for c in counts]
        terms = [n[c] ** gamma * np.exp(float(logits[i, c])) for c in range(4)]
        plain -= np.log(terms[int(labels[i])] / sum(terms)) / 6
    assert float(part.loss(logits, labels, context)) == pytest.approx(plain, rel=1e-6)


@pytest.mark.slow
def test_balanced_cross_entropy_with_gamma_zero_is_cross_entropy(tmp_path: Path) -> None:
    balanced = trained(job_of(tmp_path / "a", BalancedCrossEntropy(gamma=0.0)))
    assert torch.equal(balanced.model, trained(job_of(tmp_path / "b")).model)


def test_masked_class_gets_no_gradient() -> None:
    part, context = BalancedCrossEntropy(missing="mask"), work_with([3, 0, 2])
    part.begin(context)
    logits = torch.zeros(4, 3, requires_grad=True)
    part.loss(logits, torch.tensor([0, 2, 0, 2]), context).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert bool(torch.isfinite(logits.grad).all())
    assert float(logits.grad[:, 1].abs().sum()) == 0.0


def test_projection_normalisation_and_temperature_make_fedetfs_feature() -> None:
    model = Model(torch.nn.Identity(), 6, 3)
    parts = [Projection(dim=4), Normalise(), Temperature(beta=5.0)]
    for part in parts:
        part.build(model)
    assert model.dim == 4
    h = torch.randn(7, 6)
    features = h
    for part in parts:
        features = part.transform(model, features, None)
    layer = model.extras["projection"]
    for i in range(7):
        mu = layer.weight @ h[i] + layer.bias  # type: ignore[operator]
        torch.testing.assert_close(features[i], 5 * mu / mu.norm())


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.integers(0, 1000))
def test_ffc_of_any_split_is_the_pooled_least_squares_solution(clients: int, seed: int) -> None:
    torch.manual_seed(seed)
    z, y = torch.randn(60, 8, dtype=torch.float64), F.one_hot(torch.randint(3, (60,)), 3).double()
    owner = torch.randint(clients, (60,))
    v = sum((z[owner == k].T @ z[owner == k] for k in range(clients)), torch.zeros(8, 8, dtype=torch.float64))
    u = sum((z[owner == k].T @ y[owner == k] for k in range(clients)), torch.zeros(8, 3, dtype=torch.float64))
    pooled = torch.linalg.lstsq(z, y).solution
    torch.testing.assert_close(least_squares(v, u, 1e-12), pooled, atol=1e-6, rtol=1e-6)


def test_dead_features_do_no_harm() -> None:
    z = torch.randn(50, 6, dtype=torch.float64)
    z[:, 2] = 0.0
    y = F.one_hot(torch.randint(3, (50,)), 3).double()
    for ridge in (0.0, 1e-6):
        w = least_squares(z.T @ z, z.T @ y, ridge)
        assert bool(torch.isfinite(w).all())
        assert float(w[2].abs().max()) < 1e-6
        torch.testing.assert_close(z @ w, z @ torch.linalg.pinv(z) @ y, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_ffc_replaces_the_classifier_by_that_of_the_pooled_data(tmp_path: Path) -> None:
    job = job_of(tmp_path, Normalise(), SquaredError(), FFC())
    server = trained(job, 1)
    server.conclude(nothing)
    engine = InlineEngine(job)
    engine.runtime.load(server.build_request("score", 1).tensors, {})
    rows = job.federation.train.values
    z = engine.runtime.embeddings(rows).double()
    y = F.one_hot(job.federation.source.train.y[rows], 3).double()
    ridge = 1e-6 * (z.T @ z).diagonal().mean()
    expected = torch.linalg.solve(z.T @ z + ridge * torch.eye(z.shape[1], dtype=torch.float64), z.T @ y)
    torch.testing.assert_close(server.tensor("head.weight").T.double(), expected, atol=1e-5, rtol=1e-4)
    assert float(server.tensor("head.bias").abs().sum()) == 0.0


@pytest.mark.slow
def test_memory_is_off_before_the_warm_up_round_bit_for_bit(tmp_path: Path) -> None:
    with_memory = trained(job_of(tmp_path / "a", GlobalMemory(alpha=1.0, warm=3), rounds=5), 2)
    without = trained(job_of(tmp_path / "b", rounds=5), 2)
    assert torch.equal(with_memory.model, without.model)
    later = trained(job_of(tmp_path / "c", GlobalMemory(alpha=1.0, warm=3), rounds=5), 3)
    assert not torch.equal(later.model, trained(job_of(tmp_path / "d", rounds=5), 3).model)


@pytest.mark.slow
def test_memory_with_alpha_zero_is_fedavg(tmp_path: Path) -> None:
    with_memory = trained(job_of(tmp_path / "a", GlobalMemory(alpha=0.0, warm=1), rounds=3), 3)
    assert torch.equal(with_memory.model, trained(job_of(tmp_path / "b", rounds=3), 3).model)


def test_memory_of_a_class_is_the_mean_of_the_class_means_of_those_who_hold_it(tmp_path: Path) -> None:
    data = blobs(clients=3, each=24)
    data["y_train"] = np.where(data["user_train"] == 0, data["y_train"] % 2, data["y_train"])  # client 0 lacks class 2
    job = job_of(tmp_path, GlobalMemory(warm=1, means="final"), data=data)
    engine = InlineEngine(job)
    server = Server(job, engine, nothing)
    expected = torch.zeros(3, 8, dtype=torch.float64)
    holders = torch.zeros(3)
    order = server.build_request("train", 1)
    for client in range(3):
        engine.runtime.train(order, client)
        rows = job.federation.train[client]
        features, labels = engine.runtime.embeddings(rows).double(), job.federation.source.train.y[rows]
        for c in range(3):
            if bool((labels == c).any()):
                expected[c] += features[labels == c].mean(0)
                holders[c] += 1
    assert holders.tolist() == [3, 3, 2]
    server.run_round(1, nothing)
    torch.testing.assert_close(server.state["gmv/memory"].double(), expected / holders[:, None], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("steps", [None, 2])
def test_memory_of_training_features_equals_a_plain_loop_over_the_last_epoch(tmp_path: Path, steps: int | None) -> None:
    job = job_of(tmp_path, GlobalMemory(warm=2, means="training"), epochs=2, batch=8, steps=steps)
    server = trained(job, 1)
    expected, holders = torch.zeros(3, 8, dtype=torch.float64), torch.zeros(3)
    for client in range(3):
        model = plain_model(job)
        optimizer = torch.optim.SGD(model.parameters(), lr=job.settings.lr)
        sums, counts = torch.zeros(3, 8, dtype=torch.float64), [0, 0, 0]
        per_epoch = -(-len(job.federation.train[client]) // 8)
        for number, (x, y) in enumerate(batches(job, 1, client)[:steps]):
            if number == per_epoch:
                sums, counts = torch.zeros(3, 8, dtype=torch.float64), [0, 0, 0]
            features = model[0](x)
            for feature, label in zip(features.detach(), y.tolist(), strict=True):
                sums[label] += feature
                counts[label] += 1
            optimizer.zero_grad()
            F.cross_entropy(model[1](features), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        for c in range(3):
            if counts[c]:
                expected[c] += sums[c] / counts[c]
                holders[c] += 1
    expected /= holders.clamp_min(1)[:, None]
    torch.testing.assert_close(server.state["gmv/memory"].double(), expected, atol=1e-5, rtol=1e-4)


def test_both_kinds_of_memory_agree_where_training_does_not_move(tmp_path: Path) -> None:
    parts = [GlobalMemory(warm=1, means="final"), GlobalMemory(warm=1, means="training")]
    first, second = (trained(job_of(tmp_path / part.means, part, lr=1e-12), 2) for part in parts)
    torch.testing.assert_close(first.state["gmv/memory"], second.state["gmv/memory"], atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_memory_of_a_class_that_nobody_held_is_kept(tmp_path: Path) -> None:
    data = blobs(clients=3, each=24)
    data["y_train"] = np.where(data["user_train"] == 2, 2, data["y_train"] % 2)  # only client 2 has class 2
    job = job_of(tmp_path, GlobalMemory(warm=1), data=data, participation=0.34, rounds=10)
    server = Server(job, InlineEngine(job), nothing)
    before = server.state["gmv/memory"].clone()
    for round in range(1, 9):
        server.run_round(round, nothing)
        server.round = round
        after = server.state["gmv/memory"]
        if server.select_clients(round) == [2]:
            assert torch.equal(after[:2], before[:2])
        else:
            assert torch.equal(after[2], before[2])
        before = after.clone()
    assert float(before[2].abs().sum()) > 0


def test_fedetf_stage_moves_extractor_classifier_and_projection_and_beta(tmp_path: Path) -> None:
    job = job_of(tmp_path, Projection(dim=6), Normalise(), Temperature(), AlternatingAdaptation(iterations=1))
    server = trained(job, 1)
    runtime = server.engine.runtime  # type: ignore[attr-defined]
    order = server.build_request("personalise", 2)
    runtime.perform(order, 0)
    moved = {
        name for name, value in job.roles.layout.views(runtime.flat - order.tensors["model"]).items() if value.any()
    }
    assert {"head.weight", "extras.projection.weight", "extras.temperature.beta"} <= moved
    assert any(name.startswith("backbone.") for name in moved)


def test_fedetf_stage_without_a_projection_still_tunes_the_classifier(tmp_path: Path) -> None:
    job = job_of(tmp_path, SimplexETF(), AlternatingAdaptation(iterations=1, feature_epochs=0))
    server = trained(job, 1)
    runtime = server.engine.runtime  # type: ignore[attr-defined]
    order = server.build_request("personalise", 2)
    runtime.perform(order, 0)
    assert torch.equal(runtime.flat, order.tensors["model"])
    assert not torch.equal(runtime.model.head.weight, job.template.state_dict()["head.weight"])


def test_feature_is_mapped_then_normalised_then_scaled_whatever_the_order_of_the_names() -> None:
    names = [part.name for part in make_method("temperature+normalise+projection", {}).parts_with("transform")]
    assert names == ["projection", "normalise", "temperature"]
