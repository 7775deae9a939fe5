"""Class weights: the gradient of a weighted sum over samples, in rounds and for stacked heads alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fedframe
from fedframe.core.client_loop import weigh_gradient
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import SettingError
from fedframe.settings import read_class_weights
from tests.helpers import blobs, equal_states, make_job, nothing


def test_the_weighed_gradient_is_that_of_the_weighted_cross_entropy() -> None:
    torch.manual_seed(0)
    logits = torch.randn(12, 3, dtype=torch.float64, requires_grad=True)
    labels, weights = torch.arange(12) % 3, torch.tensor([0.5, 1.0, 4.0], dtype=torch.float64)
    loss = F.cross_entropy(weigh_gradient(logits, labels, weights), labels) + logits.square().mean()
    (found,) = torch.autograd.grad(loss, logits)
    each = F.cross_entropy(logits, labels, reduction="none")
    expected = (weights[labels] * each).mean() + logits.square().mean()  # what a penalty adds has no weight
    assert torch.allclose(found, torch.autograd.grad(expected, logits)[0])


def trained(folder: Path, method: str = "fedavg", **settings: object) -> dict[str, torch.Tensor]:
    job = make_job(folder, method=method, **settings)
    server = Server(job, InlineEngine(job))
    server.run_round(1, nothing)
    return server.tensors()


def test_weights_of_one_change_nothing_and_others_do(tmp_path: Path) -> None:
    plain = trained(tmp_path / "a")
    assert equal_states(plain, trained(tmp_path / "b", class_weights="0=1,1=1,2=1"))
    assert not equal_states(plain, trained(tmp_path / "c", class_weights="0=1,1=1,2=5"))


def test_balanced_weights_make_every_class_weigh_the_same(tmp_path: Path) -> None:
    job = make_job(tmp_path, class_weights="balanced")
    labels = job.federation.source.train.y[job.federation.train.values]
    assert job.class_weights is not None
    total = [float(job.class_weights[c]) * int((labels == c).sum()) for c in range(3)]
    assert total == pytest.approx([len(labels) / 3] * 3)


@pytest.mark.parametrize("method", ["fedavg", "fedrs", "spherefed", "fedetf", "scaffold"])
def test_losses_that_are_sums_over_samples_can_be_weighed(tmp_path: Path, method: str) -> None:
    plain, weighed = trained(tmp_path / "a", method), trained(tmp_path / "b", method, class_weights="balanced")
    assert not torch.equal(plain["model"], weighed["model"])


@pytest.mark.slow
def test_stacked_heads_and_single_ones_take_the_same_weighted_steps(tmp_path: Path) -> None:
    import fedframe.core.personal as personal
    from fedframe.core.client_runtime import ClientRuntime
    from fedframe.core.personal import make_personal_models

    job = make_job(tmp_path, method="fedetf", class_weights="0=1,1=2,2=7", save_personal=False)
    stages = job.method.slot("client_stage").head_stages(job.method, job.template)
    assert stages
    server = Server(job, InlineEngine(job))
    request = server.build_request("personalise", 3)
    together = make_personal_models(ClientRuntime(job), request, [0, 1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(personal, "can_stack", lambda job, stages: False)
        alone = make_personal_models(ClientRuntime(job), request, [0, 1])
    for one, other in zip(together, alone, strict=True):
        assert torch.allclose(one["probabilities"], other["probabilities"], atol=1e-4)


def test_a_loss_that_does_not_say_that_it_is_a_sum_is_refused(tmp_path: Path) -> None:
    from dataclasses import dataclass
    from typing import ClassVar

    from fedframe.core import ClientContext, Part

    @dataclass(frozen=True)
    class Pairs(Part):
        """A loss across samples."""

        name: ClassVar[str] = "pairs"

        def loss(self, logits: torch.Tensor, labels: torch.Tensor, context: ClientContext) -> torch.Tensor:
            return (logits @ logits.T).square().mean()

    with pytest.raises(SettingError, match="'pairs' does not say that it is one"):
        fedframe.run(
            ["fedavg", Pairs()], data=blobs(), class_weights="balanced", out=tmp_path / "run", progress=False, rounds=1
        )


@pytest.mark.parametrize("text", ["sick", "sick=", "=2", "sick=-1", "sick=nan", "sick=1,healthy"])
def test_weights_that_cannot_be_read_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(SettingError, match="healthy=1,sick=9"):
        read_class_weights(text)


def test_a_class_without_a_weight_and_a_weight_without_a_class_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="'2' has no weight"):
        make_job(tmp_path, class_weights="0=1,1=2")
    with pytest.raises(SettingError, match="'3' is none of the classes"):
        make_job(tmp_path, class_weights="0=1,1=2,3=4")


@pytest.mark.slow
def test_weights_help_the_rare_class(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    y = (draw.random(1200) < 0.06).astype(int)
    x = draw.normal(size=(1200, 4)).astype(np.float32)
    x[:, 0] += 1.5 * y
    data = {"x_train": x[:800], "y_train": y[:800], "x_test": x[800:], "y_test": y[800:]}
    recall = []
    for weights in ("none", "balanced"):
        result = fedframe.run(
            "fedavg", data=data, model="mlp:16", clients=4, partition="iid", rounds=4, workers=1, progress=False,
            class_weights=weights, out=tmp_path / weights,
        )  # fmt: skip
        recall.append(result.summary["measures"]["generic"]["per_class"]["1"]["recall"]["value"])
    assert recall[1] > recall[0] + 0.2
