from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fedframe
from fedframe.core.evaluation import score_round
from fedframe.core.model import Model
from fedframe.errors import SettingError
from fedframe.methods.parts.fedloge import (
    FRAME,
    PHI,
    PSI,
    Auxiliary,
    AuxiliaryHeads,
    GlobalRealignment,
    LocalRealignment,
)
from fedframe.methods.parts.frame_head import SimplexETF
from fedframe.methods.recipes import make_method
from fedframe.runs.folder import MODEL
from fedframe.util.files import read_tensors, write_tensors
from tests.helpers import nothing
from tests.methods.plain import batches
from tests.methods.toy import job_of, trained


def training_classifier(model: Model) -> torch.Tensor | None:
    """The class vectors under which the backbone learnt; None in models saved before they were kept beside GA-FR's."""
    heads = model.extras["auxiliary"]
    assert isinstance(heads, Auxiliary)
    if not bool(heads.realigned):
        return model.head.get_parameter("weight").detach()
    return heads.frame.detach() if bool(heads.frame.any()) else None


def test_backbone_learns_as_if_the_auxiliary_heads_were_not_there(tmp_path: Path) -> None:
    """Their features are detached: whatever they learn, the rest of the model is bit for bit FedAvg's."""
    with_heads = job_of(tmp_path / "a", AuxiliaryHeads())
    plain = job_of(tmp_path / "b")
    for name, value in plain.template.state_dict().items():
        with_heads.template.state_dict()[name].copy_(value)
    ours, theirs = trained(with_heads, 2), trained(plain, 2)
    for name in plain.template.state_dict():
        assert torch.equal(ours.tensor(name), theirs.tensor(name)), name


def test_psi_travels_and_phi_stays(tmp_path: Path) -> None:
    job = job_of(tmp_path, AuxiliaryHeads())
    names = {entry.name for entry in job.roles.layout.entries}
    assert PSI in names
    assert job.roles.private == (PHI,)
    trained(job, 2)
    own = [job.store.load(client, before=3)[f"model/{PHI}"] for client in range(3)]
    assert not torch.equal(own[0], own[1])
    assert not torch.equal(own[0], job.template.state_dict()[PHI])


def test_psi_follows_its_own_cross_entropy(tmp_path: Path) -> None:
    job = job_of(tmp_path, AuxiliaryHeads(), steps=1, batch=1000)
    server = trained(job, 1)
    start = job.template.state_dict()
    moved = torch.zeros_like(start[PSI], dtype=torch.float64)
    total = 0
    for client in range(3):
        rows = job.federation.train[client]
        x = job.federation.source.batch(job.federation.source.train, rows)
        h = job.template.backbone(x).detach().double()
        p = F.softmax(h @ start[PSI].double().T, dim=1) - F.one_hot(job.federation.source.train.y[rows], 3)
        moved -= len(rows) * job.settings.lr * p.T @ h / len(rows)
        total += len(rows)
    torch.testing.assert_close(server.tensor(PSI).double(), start[PSI].double() + moved / total, atol=1e-5, rtol=1e-4)


def test_between_rounds_psi_predicts_and_after_training_the_realigned_one(tmp_path: Path) -> None:
    job = job_of(tmp_path, AuxiliaryHeads(), GlobalRealignment(), LocalRealignment(epochs=0))
    server = trained(job, 2)
    inputs = job.federation.source.batch(job.federation.source.train, torch.arange(4))
    runtime = server.engine.runtime  # type: ignore[attr-defined]
    assert score_round(server).generic is not None
    runtime.load(server.build_request("score", 2).tensors, {})
    features = runtime.model.backbone(inputs)
    torch.testing.assert_close(job.method.logits(runtime.model, inputs), features @ server.tensor(PSI).T)
    psi = server.tensor(PSI).clone()
    server.conclude(nothing)
    runtime.load(server.build_request("score", 3).tensors, {})
    unit = psi / psi.norm(dim=1, keepdim=True)  # Eq. 6
    torch.testing.assert_close(job.method.logits(runtime.model, inputs), features @ unit.T)
    assert torch.equal(server.tensor(PSI), psi)  # LA-FR needs it as it was


def test_saved_model_has_the_frozen_classifier_beside_the_realigned_one(tmp_path: Path) -> None:
    job = job_of(tmp_path, SimplexETF(), AuxiliaryHeads(), GlobalRealignment(), LocalRealignment(epochs=0))
    frozen = job.template.state_dict()["head.weight"].clone()
    server = trained(job, 2)
    assert torch.equal(training_classifier(server.net()), frozen)  # type: ignore[arg-type]
    server.conclude(nothing)
    model = server.net()
    assert torch.equal(training_classifier(model), frozen)  # type: ignore[arg-type]
    inputs = job.federation.source.batch(job.federation.source.train, torch.arange(4))
    features = model.backbone(inputs)
    torch.testing.assert_close(job.method.logits(model, inputs), features @ F.normalize(server.tensor(PSI)).T)


@pytest.mark.slow
def test_model_that_was_saved_without_the_frozen_classifier_predicts_as_before(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 1, "clients": 3, "model": "mlp:32", "batch": 64, "epochs": 1, "workers": 1}
    folder = fedframe.run("fedloge", data="digits", out=tmp_path / "run", progress=False, **settings).folder
    now = fedframe.Predictor.load(folder)
    tensors, notes = read_tensors(folder / MODEL)
    assert bool(tensors.pop(f"model/{FRAME}").any())
    write_tensors(folder / MODEL, tensors, notes)
    before = fedframe.Predictor.load(folder)
    inputs = torch.rand(5, 8, 8) * 16
    assert torch.equal(before.probabilities(inputs), now.probabilities(inputs))
    assert training_classifier(before.model) is None


def test_local_realignment_takes_the_norms_of_the_clients_own_head(tmp_path: Path) -> None:
    job = job_of(tmp_path, AuxiliaryHeads(), GlobalRealignment(), LocalRealignment(epochs=0))
    server = trained(job, 2)
    runtime = server.engine.runtime  # type: ignore[attr-defined]
    runtime.perform(server.build_request("personalise", 3), 1)
    phi = job.store.load(1, before=3)[f"model/{PHI}"]
    expected = server.tensor(PSI) * phi.norm(dim=1, keepdim=True)  # Eq. 7
    torch.testing.assert_close(runtime.model.head.weight.detach(), expected)


def test_local_realignment_by_label_counts_takes_the_shares_of_the_clients_classes(tmp_path: Path) -> None:
    job = job_of(tmp_path, AuxiliaryHeads(), GlobalRealignment(), LocalRealignment(epochs=0, by="counts"))
    server = trained(job, 2)
    runtime = server.engine.runtime  # type: ignore[attr-defined]
    runtime.perform(server.build_request("personalise", 3), 1)
    counts = job.federation.table()[1].double()
    expected = server.tensor(PSI).double() * (counts / counts.sum())[:, None]
    torch.testing.assert_close(runtime.model.head.weight.detach().double(), expected, atol=1e-6, rtol=1e-5)


def test_realignment_without_psi_normalises_the_methods_own_classifier(tmp_path: Path) -> None:
    server = trained(job_of(tmp_path, GlobalRealignment()), 1)
    server.conclude(nothing)
    torch.testing.assert_close(server.tensor("head.weight").norm(dim=1), torch.ones(3))


@pytest.mark.parametrize("plus_phi", [False, True])
def test_personal_model_equals_a_plain_loop(tmp_path: Path, plus_phi: bool) -> None:
    """Eq. 7, fine-tuning of that head alone, and the sum of both heads' logits where it is asked for."""
    stage = LocalRealignment(epochs=3, lr=0.2, plus_phi=plus_phi)
    job = job_of(tmp_path, SimplexETF(), AuxiliaryHeads(), stage, momentum=0.5)
    server = trained(job, 2)
    runtime = server.engine.runtime  # type: ignore[attr-defined]
    runtime.perform(server.build_request("personalise", 3), 1)
    phi = job.store.load(1, before=3)[f"model/{PHI}"].double()
    backbone = copy.deepcopy(job.template.backbone)
    backbone.load_state_dict({name: server.tensor(f"backbone.{name}") for name in backbone.state_dict()})
    backbone.double().requires_grad_(False)
    head = (server.tensor(PSI).double() * phi.norm(dim=1, keepdim=True)).requires_grad_()
    optimizer = torch.optim.SGD([head], lr=0.2, momentum=0.5)
    for x, y in batches(job, 3, 1, "personalise", epochs=3):
        optimizer.zero_grad()
        F.cross_entropy(backbone(x) @ head.T, y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    inputs = job.federation.source.batch(job.federation.source.train, torch.arange(9))
    h = backbone(inputs.double())
    expected = h @ head.detach().T + (h @ phi.T if plus_phi else 0)
    torch.testing.assert_close(job.method.logits(runtime.model, inputs).double(), expected, atol=1e-5, rtol=1e-4)


def test_heads_are_built_for_projected_features_wherever_the_projection_stands() -> None:
    for name in ("fedloge+projection", "projection+fedloge"):
        model = make_method(name, {"projection": {"dim": 40}}).build(torch.nn.Identity(), 128, 3)
        assert model.extras["auxiliary"].psi.shape == (3, 40)


def test_local_realignment_without_the_heads_says_what_is_missing() -> None:
    with pytest.raises(SettingError, match=r"'la_fr' needs 'auxiliary_heads'.*auxiliary_heads\+la_fr"):
        make_method("sse_c+la_fr", {})


def test_heads_and_least_squares_are_refused_because_one_would_have_no_effect() -> None:
    with pytest.raises(SettingError, match=r"'auxiliary_heads' predicts.*'ffc' would have no effect"):
        make_method("sse_c+auxiliary_heads+ffc", {})
