"""The classifier trained on all data in one place: at its optimum, which FFC cannot pass; what it leaves alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import optimize

from fedframe.core.part import Part
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import SettingError
from fedframe.methods.parts.features import Normalise
from fedframe.methods.parts.ffc import FFC
from fedframe.methods.parts.frame_head import Orthonormal
from fedframe.methods.parts.losses import SquaredError
from fedframe.methods.parts.pooled_head import PooledHead
from fedframe.methods.recipes import make_method
from fedframe.settings import Settings
from tests.helpers import blobs, nothing
from tests.methods.toy import job_of, trained

HEAD = "head.weight"


def pooled(server: Server) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and labels of all clients' training data, under the shared model."""
    rows, runtime = server.job.federation.train.values, server.engine.runtime  # type: ignore[attr-defined]
    runtime.load(server.build_request("score", 1).tensors, {})
    return runtime.embeddings(rows).double(), server.job.federation.source.train.y[rows]


def test_squared_error_ends_at_least_squares_and_the_backbone_stays(tmp_path: Path) -> None:
    server = trained(job_of(tmp_path, Orthonormal(), Normalise(), SquaredError(), PooledHead()), 2)
    features, labels = pooled(server)
    backbone, frozen = server.model.clone(), server.tensor(HEAD).clone()
    server.conclude(nothing)
    best = torch.linalg.lstsq(features, F.one_hot(labels, 3).double()).solution
    torch.testing.assert_close(features @ server.tensor(HEAD).double().T, features @ best, atol=1e-3, rtol=0)
    assert torch.equal(server.model, backbone)
    assert not torch.equal(server.tensor(HEAD), frozen)


@pytest.mark.parametrize("bias", [False, True])
def test_squared_error_is_the_ridged_solution_with_a_bias_where_there_was_one(bias: bool) -> None:
    torch.manual_seed(0)
    features, labels = 1 + torch.randn(50, 3, dtype=torch.float64), torch.randint(4, (50,))
    before = {"weight": torch.zeros(4, 3), **({"bias": torch.zeros(4)} if bias else {})}
    found = PooledHead(ridge=0.1).fit(features, labels, before)
    z = np.hstack([features.numpy(), np.ones((50, 1))]) if bias else features.numpy()
    gram = z.T @ z
    expected = np.linalg.solve(gram + 0.1 * np.trace(gram) / len(gram) * np.eye(len(gram)), z.T @ np.eye(4)[labels]).T
    np.testing.assert_allclose(found["weight"], expected[:, :3], rtol=1e-9)
    assert ("bias" in found) == bias
    if bias:
        np.testing.assert_allclose(found["bias"], expected[:, 3], rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("start", [0.0, 3.0])
def test_cross_entropy_ends_at_its_minimum_wherever_it_starts(start: float) -> None:
    torch.manual_seed(0)
    features, labels = torch.randn(60, 3, dtype=torch.float64), torch.randint(4, (60,))
    z = np.hstack([features.numpy(), np.ones((60, 1))])
    ridge = 1e-2 * float((z**2).mean())

    def loss(flat: Any) -> float:
        logits = z @ flat.reshape(4, 4).T
        rows = [
            math.log(sum(math.exp(v) for v in row)) - row[y] for row, y in zip(logits, labels.tolist(), strict=True)
        ]
        return float(sum(rows) / 60 + ridge * (flat**2).sum())

    expected = optimize.minimize(loss, np.zeros(16), method="BFGS", options={"gtol": 1e-7}).x.reshape(4, 4)
    before = {"weight": torch.full((4, 3), start, dtype=torch.float64), "bias": torch.full((4,), -start).double()}
    before["weight"][0] *= -1
    found = PooledHead(loss_by="ce", ridge=1e-2).fit(features, labels, before)
    np.testing.assert_allclose(found["weight"], expected[:, :3], atol=1e-4)
    np.testing.assert_allclose(found["bias"], expected[:, 3], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("head", [None, Orthonormal()])
def test_ceiling_is_not_below_ffc_on_the_data_that_both_are_fitted_to(tmp_path: Path, head: Part | None) -> None:
    heads = [] if head is None else [head, Normalise()]
    losses = {}
    for stage in (FFC(), PooledHead()):
        server = trained(job_of(tmp_path / stage.name, *heads, SquaredError(), stage), 2)
        features, labels = pooled(server)
        server.conclude(nothing)
        logits = features @ server.tensor(HEAD).double().T
        logits += server.tensor("head.bias").double() if head is None else 0.0
        losses[stage.name] = float((logits - F.one_hot(labels, 3)).square().mean())
    assert losses["pooled_head"] <= losses["ffc"] + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("loss_by", ["mse", "ce"])
def test_ceiling_of_a_hundred_classes_is_not_below_ffc_on_held_out_data(tmp_path: Path, loss_by: Any) -> None:
    data = blobs(clients=4, each=1000, classes=100, dim=20)
    accuracy = {}
    for stage in (FFC(), PooledHead(loss_by=loss_by)):
        parts = (Orthonormal(), Normalise(), SquaredError(), stage)
        job = job_of(tmp_path / stage.name, *parts, data=data, model="mlp:128", lr=5.0, momentum=0.9, rounds=2)
        accuracy[stage.name] = trained(job, 2).conclude(nothing).generic
    assert accuracy["ffc"] is not None
    assert accuracy["pooled_head"] is not None
    assert accuracy["pooled_head"] >= accuracy["ffc"] - 0.005
    assert accuracy["ffc"] > 0.5


def test_user_is_told_and_no_client_is_asked(tmp_path: Path) -> None:
    job = job_of(tmp_path, PooledHead())
    notes: list[str] = []
    server = Server(job, InlineEngine(job), notes.append)
    before = server.tensor("head.bias").clone()
    server.conclude(nothing)
    assert "trained on 54 samples in one place" in notes[0]
    assert not torch.equal(server.tensor("head.bias"), before)


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("etf+auxiliary_heads+pooled_head", "'auxiliary_heads' predicts with a classifier of its own"),
        ("fedbn+pooled_head", "'pooled_head' needs a shared model that predicts"),
        ("spherefed+pooled_head", "both claim the server_stage slot"),
    ],
)
def test_company_in_which_it_would_have_no_effect_is_refused(method: str, why: str) -> None:
    with pytest.raises(SettingError) as refusal:
        make_method(method, {})
    assert why in str(refusal.value)


def test_private_statistics_are_refused() -> None:
    with pytest.raises(SettingError, match="buffers = 'private'; use average"):
        PooledHead().check_settings(Settings(buffers="private"))
