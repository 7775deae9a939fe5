"""Ratio Loss: weights by hand and from autograd, a plain loop, the limit, and what the user is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedframe
from fedframe.core.job import Job
from fedframe.core.server import Server
from fedframe.data.holdout import hold_out_server_samples
from fedframe.engines.inline import InlineEngine
from fedframe.errors import SettingError
from fedframe.methods.parts.ratioloss import RatioLoss, pull_by_push
from fedframe.methods.recipes import make_method
from fedframe.settings import Settings
from tests.helpers import blobs, nothing
from tests.methods.plain import average, batches, plain_model, same
from tests.methods.toy import job_of, trained


def job_with(folder: Path, part: RatioLoss, **settings: Any) -> Job:
    """The job that a run would make: the part has put its samples aside."""
    job = job_of(folder, part, **settings)
    each = int(part.server_samples)
    federation = (
        hold_out_server_samples(job.federation, each, job.settings.seed, "ratioloss.samples")
        if each
        else job.federation
    )
    return Job(job.settings, job.method, federation, job.template, folder)


def test_two_classes_by_hand() -> None:
    """One feature of 1; class 0 gets probability .9 on its own sample and .6 on the other's."""
    own, other = torch.tensor([0.9, 0.1]).logit()[0], torch.tensor([0.6, 0.4]).logit()[0]
    logits = torch.stack([torch.stack([own, torch.zeros(())]), torch.stack([other, torch.zeros(())])]).double()
    ratios = pull_by_push(torch.ones(2, 1, dtype=torch.float64), logits, torch.tensor([0, 1]))
    # Class 0: pull 1 - .9, push .6. Class 1: pull 1 - .4, push .1.
    torch.testing.assert_close(ratios, torch.tensor([0.1 / 0.6, 0.6 / 0.1], dtype=torch.float64), atol=1e-6, rtol=1e-6)


def test_ratios_are_those_of_the_gradients_that_autograd_finds() -> None:
    torch.manual_seed(0)
    head = nn.Linear(5, 3).double()
    features, labels = torch.randn(12, 5, dtype=torch.float64), torch.arange(12) % 3
    size = torch.zeros(3, 3, dtype=torch.float64)
    for j in range(3):
        loss = F.cross_entropy(head(features[labels == j]), labels[labels == j])
        (gradient,) = torch.autograd.grad(loss, head.weight)
        for p in range(3):
            size[j, p] = gradient[p].abs().sum()
    expected = [float(size[p, p] / ((size[:, p].sum() - size[p, p]) / 2)) for p in range(3)]
    found = pull_by_push(features, head(features).detach(), labels)
    assert found.tolist() == pytest.approx(expected, rel=1e-10)


def test_ratio_loss_with_beta_zero_is_fedavg_and_takes_nothing(tmp_path: Path) -> None:
    job = job_with(tmp_path / "a", RatioLoss(beta=0.0))
    assert len(job.federation.server_rows) == 0
    assert torch.equal(trained(job, 2).model, trained(job_of(tmp_path / "b"), 2).model)


def test_ratio_loss_equals_a_plain_loop(tmp_path: Path) -> None:
    part = RatioLoss(alpha=0.8, beta=0.5, samples=4, most=3.0)
    job = job_with(tmp_path, part, epochs=2)
    server = trained(job, 2)
    shared, source = plain_model(job), job.federation.source
    weights_of = torch.full((3,), 0.8, dtype=torch.float64)
    for round in (1, 2):
        locals_, weights = [], []
        for client in range(3):
            model = plain_model(job)
            model.load_state_dict(shared.state_dict())
            optimizer = torch.optim.SGD(model.parameters(), lr=job.settings.lr)
            for x, y in batches(job, round, client):
                chances = model(x).softmax(1)
                loss = torch.zeros((), dtype=torch.float64)
                for i in range(len(x)):
                    loss = loss - weights_of[y[i]] * chances[i, y[i]].log() / len(x)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            locals_.append(model)
            weights.append(float(len(job.federation.train[client])))
        average(locals_, weights, shared)
        rows = job.federation.server_rows
        x, y = source.batch(source.train, rows).double(), source.train.y[rows]
        features = shared[0](x).detach()
        ratios = pull_by_push(features, shared[1](features).detach(), y)
        weights_of = 0.8 + 0.5 * ratios.clamp_max(3.0)
    same(job, server, shared)
    torch.testing.assert_close(server.state["ratioloss/weights"].double(), weights_of, atol=1e-4, rtol=1e-3)
    assert server.figures["ratioloss/highest"] == pytest.approx(float(weights_of.max()), rel=1e-3)


def test_neglected_class_weighs_more(tmp_path: Path) -> None:
    data = blobs(clients=3, each=60)
    rare = (data["y_train"] == 2).nonzero()[0][8:]
    data["y_train"][rare] = data["y_train"][rare - 1] % 2
    job = job_with(tmp_path, RatioLoss(samples=2), data=data, epochs=2)
    weights = trained(job, 2).state["ratioloss/weights"]
    assert int(weights.argmax()) == 2


def test_client_stage_has_plain_cross_entropy(tmp_path: Path) -> None:
    job = job_with(tmp_path, RatioLoss(samples=2))
    engine = InlineEngine(job)
    context = engine.runtime.begin(Server(job, engine, nothing).build_request("personalise", 2), 0)
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    assert torch.equal(RatioLoss().loss(logits, labels, context), F.cross_entropy(logits, labels))


@pytest.mark.slow
def test_log_says_that_the_server_holds_data_and_too_many_are_refused(tmp_path: Path) -> None:
    brief: dict[str, Any] = {"data": "digits", "clients": 4, "rounds": 1, "personal": False, "workers": 1}
    fedframe.run("ratioloss", out=tmp_path / "run", progress=False, **brief)
    assert "The server holds 160 labelled training samples, 16 of each class" in (tmp_path / "run/log.txt").read_text()
    with pytest.raises(SettingError, match=r"ratioloss.samples = 500 is more than half of a class; .* = \d+ works"):
        fedframe.run("ratioloss", set={"ratioloss": {"samples": 500}}, out=tmp_path / "no", progress=False, **brief)
    assert not (tmp_path / "no").exists()


def test_model_that_is_not_shared_is_refused() -> None:
    with pytest.raises(SettingError, match="'ratioloss' needs a shared model that predicts"):
        make_method("ratioloss+fedper", {})
    with pytest.raises(SettingError, match="buffers = 'private'; use average"):
        RatioLoss().check_settings(Settings(buffers="private"))


def test_settings_that_cannot_be_are_refused_with_the_default() -> None:
    with pytest.raises(SettingError, match=r"ratioloss.beta = -1.*the default is 0.1"):
        make_method("ratioloss", {"ratioloss": {"beta": -1}})


def test_without_beta_alpha_still_scales_the_loss(tmp_path: Path) -> None:
    job = job_with(tmp_path, RatioLoss(alpha=0.5, beta=0.0))
    engine = InlineEngine(job)
    context = engine.runtime.begin(Server(job, engine, nothing).build_request("train", 1), 0)
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    assert torch.equal(
        RatioLoss(alpha=0.5, beta=0.0).loss(logits, labels, context), 0.5 * F.cross_entropy(logits, labels)
    )
