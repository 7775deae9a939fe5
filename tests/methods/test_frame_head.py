"""Frozen classifiers as parts: built from the seed, never trained, never sent with the rounds, saved with the model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from fedframe.core.job import Job
from fedframe.core.method import combine
from fedframe.core.model import Model
from fedframe.core.part import Part, filled_slots
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import SettingError
from fedframe.methods.parts import DEFAULTS
from fedframe.methods.parts.frame_head import FrozenRandom, Orthonormal, SimplexETF, SparseETF
from fedframe.methods.parts.linear_head import LinearHead
from fedframe.models.frames import angle_spread
from fedframe.runs.folder import MODEL
from fedframe.runs.predictor import save_model
from fedframe.util.files import read_tensors
from tests.helpers import make_job, nothing

HEADS: tuple[Part, ...] = (
    Orthonormal(),
    SimplexETF(),
    SparseETF(sparsity=0.25),
    FrozenRandom(),
    FrozenRandom(init="gaussian", sparsity=0.5, norm=1.0),
)


def built(part: Part, classes: int = 10, dim: int = 64, seed: int = 0) -> nn.Linear:
    model = Model(nn.Identity(), dim, classes)
    torch.manual_seed(seed)
    part.build_head(model)
    assert isinstance(model.head, nn.Linear)
    return model.head


def job_of(folder: Path, part: Part) -> Job:
    job = make_job(folder, lr=0.05)
    method = combine("frozen", [part], [default() for default in DEFAULTS])
    torch.manual_seed(0)
    model = method.build(job.template.backbone, job.template.dim, job.template.classes)
    return Job(job.settings, method, job.federation, model, folder)


@pytest.mark.parametrize("part", HEADS, ids=str)
def test_frozen_head_is_not_shared_does_not_train_and_is_saved(tmp_path: Path, part: Part) -> None:
    job = job_of(tmp_path, part)
    before = job.template.state_dict()["head.weight"].clone()
    assert [name for name in job.template.state_dict() if name.startswith("head.")] == ["head.weight"]
    assert "head.weight" not in {entry.name for entry in job.roles.layout.entries}
    assert job.roles.fixed == ("head.weight",)
    engine = InlineEngine(job)
    server = Server(job, engine, nothing)
    start = server.model.clone()
    for round in (1, 2):
        assert server.run_round(round, nothing).dropped == 0
        server.round = round
    assert not torch.equal(server.model, start)
    for model in (engine.runtime.model, job.template):
        assert torch.equal(model.state_dict()["head.weight"], before)
        assert not dict(model.named_parameters())["head.weight"].requires_grad
    assert torch.equal(server.tensor("head.weight"), before)
    save_model(tmp_path, job, server.model, server.fixed_overrides)
    assert torch.equal(read_tensors(tmp_path / MODEL)[0]["model/head.weight"], before)


@pytest.mark.parametrize("part", HEADS, ids=str)
def test_head_follows_the_seed_and_claims_its_slot(part: Part) -> None:
    head = built(part)
    assert torch.equal(head.weight, built(part).weight)
    assert not torch.equal(head.weight, built(part, seed=1).weight)
    assert filled_slots(type(part)) == {"head"}
    features = torch.randn(5, 64)
    assert torch.allclose(head(features), features @ head.weight.T, atol=1e-6)
    assert not head.weight.requires_grad
    with pytest.raises(SettingError, match="both claim the head slot"):
        combine("x", [part, LinearHead()], [])


def test_scale_and_norm_are_the_lengths_of_the_class_vectors() -> None:
    assert torch.allclose(built(SimplexETF(scale=1.5)).weight.norm(dim=1), torch.tensor(1.5))
    assert torch.allclose(built(SparseETF()).weight.norm(dim=1), torch.tensor(1.0))
    assert ((built(SparseETF()).weight == 0).sum(1) == 38).all()  # 0.6 of 64
    assert torch.allclose(built(Orthonormal()).weight @ built(Orthonormal()).weight.T, torch.eye(10), atol=1e-6)


@pytest.mark.parametrize("bias", [False, True])
def test_frozen_random_starts_where_the_linear_head_starts(bias: bool) -> None:
    frozen, linear = built(FrozenRandom(bias=bias)), built(LinearHead(bias=bias))
    assert frozen.state_dict().keys() == linear.state_dict().keys()
    assert all(torch.equal(frozen.state_dict()[name], value) for name, value in linear.state_dict().items())
    assert not any(parameter.requires_grad for parameter in frozen.parameters())


def test_features_that_are_too_small_are_refused() -> None:
    for part in (Orthonormal(), SimplexETF(), SparseETF()):
        with pytest.raises(SettingError, match=r"choose a larger net, or write METHOD\+projection"):
            built(part, classes=10, dim=8)


def test_class_vectors_that_are_no_etf_are_named_with_their_angles(tmp_path: Path) -> None:
    notes: list[str] = []
    job = job_of(tmp_path, SparseETF(sparsity=0.6, best_effort=True))
    Server(job, InlineEngine(job), notes.append)
    assert not notes
    zeros = 0.9
    job = job_of(tmp_path, SparseETF(sparsity=zeros, best_effort=True))
    Server(job, InlineEngine(job), notes.append)
    least, most = angle_spread(job.template.head.weight)  # type: ignore[arg-type]
    assert f"{least:.2f} to {most:.2f} degrees" in notes[0]
    assert "sse_c.sparsity = 0.9 allows no ETF" in notes[0]
