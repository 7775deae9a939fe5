from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from fedframe.core.evaluate import score_round
from fedframe.errors import RunError
from fedframe.parts.fedloge import PHI, PSI, AuxiliaryHeads, GlobalRealignment, LocalRealignment
from tests.helpers import nothing
from tests.parts.toy import job_of, trained


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
    site = server.engine.site  # type: ignore[attr-defined]
    assert score_round(server).generic is not None
    site.load(server.order("score", 2).tensors, {})
    features = site.model.backbone(inputs)
    torch.testing.assert_close(job.method.logits(site.model, inputs), features @ server.tensor(PSI).T)
    psi = server.tensor(PSI).clone()
    server.conclude(nothing)
    site.load(server.order("score", 3).tensors, {})
    unit = psi / psi.norm(dim=1, keepdim=True)  # Eq. 6
    torch.testing.assert_close(job.method.logits(site.model, inputs), features @ unit.T)
    assert torch.equal(server.tensor(PSI), psi)  # LA-FR needs it as it was


def test_local_realignment_takes_the_norms_of_the_clients_own_head(tmp_path: Path) -> None:
    job = job_of(tmp_path, AuxiliaryHeads(), GlobalRealignment(), LocalRealignment(epochs=0))
    server = trained(job, 2)
    site = server.engine.site  # type: ignore[attr-defined]
    site.perform(server.order("personalise", 3), 1)
    phi = job.store.load(1, before=3)[f"model/{PHI}"]
    expected = server.tensor(PSI) * phi.norm(dim=1, keepdim=True)  # Eq. 7
    torch.testing.assert_close(site.model.head.weight.detach(), expected)


def test_realignment_without_psi_normalises_the_methods_own_classifier(tmp_path: Path) -> None:
    server = trained(job_of(tmp_path, GlobalRealignment()), 1)
    server.conclude(nothing)
    torch.testing.assert_close(server.tensor("head.weight").norm(dim=1), torch.ones(3))


def test_local_realignment_without_the_heads_says_what_is_missing(tmp_path: Path) -> None:
    server = trained(job_of(tmp_path, LocalRealignment()), 1)
    with pytest.raises(RunError, match=r"needs the auxiliary heads.*auxiliary_heads\+la_fr"):
        server.conclude(nothing)
