"""The classifier trained on all data in one place: least squares, by gradients; what it leaves alone and refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import SettingError
from fedframe.methods.parts.features import Normalise
from fedframe.methods.parts.frame_head import Orthonormal
from fedframe.methods.parts.losses import SquaredError
from fedframe.methods.parts.pooled_head import PooledHead
from fedframe.methods.recipes import make_method
from fedframe.settings import Settings
from tests.helpers import nothing
from tests.methods.toy import job_of, trained

HEAD = "head.weight"


def pooled(server: Server) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and labels of all clients' training data, under the shared model."""
    rows, runtime = server.job.federation.train.values, server.engine.runtime  # type: ignore[attr-defined]
    runtime.load(server.build_request("score", 1).tensors, {})
    return runtime.embeddings(rows).double(), server.job.federation.source.train.y[rows]


def test_squared_error_ends_at_least_squares_and_the_backbone_stays(tmp_path: Path) -> None:
    part = PooledHead(epochs=3000, lr=2.0, batch=1000)
    server = trained(job_of(tmp_path, Orthonormal(), Normalise(), SquaredError(), part), 2)
    features, labels = pooled(server)
    backbone, frozen = server.model.clone(), server.tensor(HEAD).clone()
    server.conclude(nothing)
    best = torch.linalg.lstsq(features, F.one_hot(labels, 3).double()).solution
    ours = features @ server.tensor(HEAD).double().T
    torch.testing.assert_close(ours, features @ best, atol=2e-2, rtol=0)
    assert torch.equal(server.model, backbone)
    assert not torch.equal(server.tensor(HEAD), frozen)


@pytest.mark.parametrize("loss_by", ["ce", "mse"])
def test_training_is_sgd_with_momentum_over_shuffled_batches(loss_by: Any) -> None:
    torch.manual_seed(0)
    features, labels = torch.randn(50, 3), torch.randint(4, (50,))
    head, plain = torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)
    plain.load_state_dict(head.state_dict())
    part = PooledHead(loss_by=loss_by, epochs=3, lr=0.05, batch=16)
    part.train(head, features, labels, torch.Generator().manual_seed(5))
    optimizer, generator = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9), torch.Generator().manual_seed(5)
    for _ in range(3):
        order = torch.randperm(50, generator=generator)
        for start in range(0, 50, 16):
            some = order[start : start + 16]
            logits, wanted = plain(features[some]), F.one_hot(labels[some], 4)
            loss = -(logits.log_softmax(1) * wanted).sum(1) if loss_by == "ce" else (logits - wanted).square().mean(1)
            optimizer.zero_grad()
            loss.mean().backward()
            optimizer.step()
    torch.testing.assert_close(head.weight, plain.weight)
    torch.testing.assert_close(head.bias, plain.bias)


def test_user_is_told_and_no_client_is_asked(tmp_path: Path) -> None:
    job = job_of(tmp_path, PooledHead(epochs=1))
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
