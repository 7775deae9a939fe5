"""CCVR: statistics of any split are those of the pooled data; virtual features; the new classifier."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedframe.core.model import Model
from fedframe.core.part import Part
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import SettingError
from fedframe.methods.parts.ccvr import CCVR, Pool, class_statistics, root
from fedframe.methods.parts.frame_head import SimplexETF
from fedframe.methods.recipes import make_method
from tests.helpers import blobs, nothing
from tests.methods.toy import job_of, trained


def pooled(features: Tensor, labels: Tensor, owner: Tensor, classes: int) -> Pool:
    """What the server has after every owner's statistics."""
    pool = Pool(classes, features.shape[1])
    for k in {*owner.tolist()}:
        own = owner == k
        counts = torch.bincount(labels[own], minlength=classes).double()
        pool.add(counts, *class_statistics(features[own], labels[own], classes))
    return pool


def test_two_clients_by_hand() -> None:
    """Features 0, 2 at one client (mean 1, variance 2) and 4 at the other: mean 2, variance (4 + 0 + 4) / 2."""
    features, labels = torch.tensor([[0.0], [2.0], [4.0]], dtype=torch.float64), torch.zeros(3, dtype=torch.int64)
    pool = pooled(features, labels, torch.tensor([0, 0, 1]), 1)
    assert float(pool.counts[0]) == 3
    assert float(pool.means[0]) == pytest.approx(2)
    assert float(pool.covariance(0)) == pytest.approx(4)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(0, 1000), st.sampled_from([0.0, 1.0, 1000.0]))
def test_statistics_of_any_split_are_those_of_the_pooled_data(clients: int, seed: int, shift: float) -> None:
    torch.manual_seed(seed)
    features = shift + torch.randn(60, 5, dtype=torch.float64) @ torch.randn(5, 5, dtype=torch.float64)
    labels, owner = torch.randint(4, (60,)), torch.randint(clients, (60,))
    pool = pooled(features, labels, owner, 5)  # class 4 is nobody's
    for c in range(4):
        own = features[labels == c]
        assert int(pool.counts[c]) == len(own)
        if len(own) > 1:
            torch.testing.assert_close(pool.means[c], own.mean(0), atol=1e-6, rtol=1e-6)
            torch.testing.assert_close(pool.covariance(c), torch.cov(own.T), atol=1e-6, rtol=1e-6)
    assert float(pool.counts[4] + pool.means[4].abs().sum() + pool.covariance(4).abs().sum()) == 0


def test_root_squares_to_the_covariance_also_where_it_is_singular() -> None:
    torch.manual_seed(0)
    thin = torch.randn(3, 8, dtype=torch.float64)  # rank 3 of 8
    for covariance in (thin.T @ thin, torch.zeros(8, 8, dtype=torch.float64)):
        for ridge in (0.0, 1e-3):
            factor = root(covariance, ridge)
            expected = covariance + ridge * covariance.diagonal().mean() * torch.eye(8, dtype=torch.float64)
            torch.testing.assert_close(factor @ factor, expected, atol=1e-9, rtol=1e-9)


def test_virtual_features_have_mean_and_covariance_of_their_class() -> None:
    torch.manual_seed(0)
    features = torch.randn(200, 3, dtype=torch.float64) @ torch.randn(3, 3, dtype=torch.float64) + 2
    pool = pooled(features, torch.zeros(200, dtype=torch.int64), torch.arange(200) % 7, 2)
    drawn, labels = CCVR(samples=40_000).draw(pool, torch.Generator().manual_seed(1))
    assert torch.bincount(labels, minlength=2).tolist() == [40_000, 0]  # nobody has class 1
    torch.testing.assert_close(drawn.mean(0), features.mean(0), atol=0.05, rtol=0.02)
    torch.testing.assert_close(torch.cov(drawn.T), torch.cov(features.T), atol=0.1, rtol=0.05)


def test_share_and_relu() -> None:
    features = torch.randn(40, 2, dtype=torch.float64)
    labels = torch.tensor([0] * 30 + [1] * 9 + [2])
    pool = pooled(features, labels, torch.zeros(40), 3)
    generator = torch.Generator().manual_seed(0)
    drawn, classes = CCVR(samples=100, share="data", relu=True).draw(pool, generator)
    assert torch.bincount(classes).tolist() == [225, 68, 8]  # 300 in all, by 30 : 9 : 1 (67.5 and 7.5 to even)
    assert float(drawn.min()) == 0
    single = drawn[classes == 2]  # one sample has no spread
    torch.testing.assert_close(single, features[-1].clamp_min(0).expand_as(single))


def test_training_fits_virtual_features_that_can_be_told_apart() -> None:
    torch.manual_seed(0)
    labels = torch.arange(300) % 3
    features = 4 * torch.eye(3)[labels] + 0.3 * torch.randn(300, 3)
    head = nn.Linear(3, 3)
    CCVR(epochs=10).train(head, features, labels, torch.Generator().manual_seed(0))
    assert float((head(features).argmax(1) == labels).float().mean()) > 0.99


@pytest.mark.slow
@pytest.mark.parametrize("head", [None, SimplexETF()])
def test_server_stage_replaces_learned_and_frozen_classifiers_and_the_seed_fixes_it(
    tmp_path: Path, head: Part | None
) -> None:
    found = []
    parts: list[Part] = [CCVR(samples=50)] if head is None else [CCVR(samples=50), head]
    for name in ("a", "b"):
        job = job_of(tmp_path / name, *parts, data=blobs(), lr=0.05)
        server = trained(job, 2)
        before, backbone = server.tensor("head.weight").clone(), server.model.clone()
        server.conclude(nothing)
        after = server.tensor("head.weight").clone()
        assert not torch.equal(after, before)
        server.set_tensor("head.weight", before)
        if head is None:
            server.set_tensor("head.bias", job.roles.layout.views(backbone)["head.bias"])
        assert torch.equal(server.model, backbone)  # nothing else has changed
        found.append(after)
    assert torch.equal(*found)


def test_classifier_is_trained_on_the_statistics_of_all_clients(tmp_path: Path) -> None:
    part = CCVR(samples=30, epochs=2)
    job = job_of(tmp_path, part)
    server = trained(job, 1)
    engine = InlineEngine(job)
    engine.runtime.load(server.build_request("score", 1).tensors, {})
    rows = job.federation.train.values
    features, labels = engine.runtime.embeddings(rows).double(), job.federation.source.train.y[rows]
    pool = pooled(features, labels, torch.zeros(len(rows)), 3)
    head, generator = copy.deepcopy(server.net().head), server.generator("ccvr")
    virtual, classes = part.draw(pool, generator)
    part.train(head, virtual.float(), classes, generator)
    server.conclude(nothing)
    torch.testing.assert_close(server.tensor("head.weight"), head.state_dict()["weight"], atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(server.tensor("head.bias"), head.state_dict()["bias"], atol=1e-4, rtol=1e-3)


def test_without_usable_statistics_the_classifier_stays_and_the_user_is_told(tmp_path: Path) -> None:
    job = job_of(tmp_path, CCVR(samples=5))
    notes: list[str] = []
    server = Server(job, InlineEngine(job), notes.append)
    before = server.model.clone()
    CCVR(samples=5).server_stage(server, [])
    assert torch.equal(server.model, before)
    assert "the classifier stays as it is" in notes[0]


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("etf+auxiliary_heads+ccvr", "'auxiliary_heads' predicts with a classifier of its own"),
        ("fedper+ccvr", "'fedper' keeps the last layer on the client"),
        ("spherefed+ccvr", "'ffc' (of spherefed) and 'ccvr' both claim the server_stage slot"),
    ],
)
def test_company_in_which_it_would_have_no_effect_is_refused(method: str, why: str) -> None:
    with pytest.raises(SettingError) as refusal:
        make_method(method, {})
    assert why in str(refusal.value)


def test_covariances_that_do_not_fit_are_refused_before_training() -> None:
    CCVR().check_model(Model(nn.Identity(), 1280, 100), 10)
    with pytest.raises(SettingError, match=r"3.1 GB from every client .* at most 1637 features or add \+projection"):
        CCVR().check_model(Model(nn.Identity(), 2025, 200), 10)


def test_settings_that_cannot_be_are_refused_with_the_default() -> None:
    bad: dict[str, Any] = {"samples": 0}
    with pytest.raises(SettingError, match=r"ccvr.samples = 0.*the default is 500"):
        make_method("ccvr", {"ccvr": bad})


def test_training_is_sgd_with_momentum_over_shuffled_batches() -> None:
    torch.manual_seed(0)
    features, labels = torch.randn(50, 3), torch.randint(4, (50,))
    head, plain = nn.Linear(3, 4), nn.Linear(3, 4)
    plain.load_state_dict(head.state_dict())
    CCVR(epochs=3, lr=0.05, batch=16).train(head, features, labels, torch.Generator().manual_seed(5))
    optimizer, generator = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9), torch.Generator().manual_seed(5)
    for _ in range(3):
        order = torch.randperm(50, generator=generator)
        for start in range(0, 50, 16):
            some = order[start : start + 16]
            optimizer.zero_grad()
            F.cross_entropy(plain(features[some]), labels[some]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    torch.testing.assert_close(head.weight, plain.weight)
    torch.testing.assert_close(head.bias, plain.bias)


def test_ridge_gives_a_feature_that_never_changes_a_little_spread() -> None:
    features = torch.zeros(30, 2, dtype=torch.float64)
    features[:, 0] = torch.arange(30.0)
    pool = pooled(features, torch.zeros(30, dtype=torch.int64), torch.zeros(30), 1)
    drawn, _ = CCVR(samples=20_000, ridge=0.01).draw(pool, torch.Generator().manual_seed(0))
    expected = 0.01 * float(torch.cov(features.T).diagonal().mean())
    assert float(drawn[:, 1].var()) == pytest.approx(expected, rel=0.05)
    assert float(CCVR(ridge=0.0).draw(pool, torch.Generator())[0][:, 1].abs().max()) == pytest.approx(0, abs=1e-6)
