"""CReFF: gradients, matching and retraining against plain loops; its rounds are FedAvg's."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedframe.errors import SettingError
from fedframe.methods.parts.creff import CLASSIFIER, FEATURES, CReFF, class_gradients, mismatch
from fedframe.methods.parts.linear_head import LinearHead
from fedframe.methods.recipes import make_method
from tests.methods.toy import job_of, lacking, trained

SMALL = CReFF(features=4, match_steps=3, epochs=2, batch=5)


def plain_gradient(features: Tensor, label: int, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Of the mean cross-entropy of features of one class, by autograd."""
    weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    loss = F.cross_entropy(features @ weight.T + bias, torch.full((len(features),), label))
    return torch.autograd.grad(loss, (weight, bias), create_graph=True)  # type: ignore[return-value]


def plain_distance(a: Tensor, b: Tensor) -> Tensor:
    dot = sum((a[i] * b[i] for i in range(len(a))), torch.zeros((), dtype=a.dtype))
    return 1 - dot / (torch.sqrt(a.square().sum()) * torch.sqrt(b.square().sum()) + 1e-6)


def test_gradients_of_a_client_are_those_of_autograd() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 2, 2, 0, 0, 2, 2, 2, 0])  # none of class 1
    classifier = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    found = class_gradients(features, labels, classifier)
    assert not found[1].any()
    for c in (0, 2):
        weight, bias = plain_gradient(features[labels == c], c, classifier[:, :-1], classifier[:, -1])
        torch.testing.assert_close(found[c], torch.cat([weight, bias[:, None]], 1).detach())


@pytest.mark.parametrize("bias", [True, False])
def test_mismatch_is_the_sum_over_classes_held_and_rows(bias: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(3, 4, 5, generator=generator)
    classifier, wanted = torch.randn(3, 6, generator=generator), torch.randn(3, 3, 6, generator=generator)
    total = torch.zeros((), dtype=torch.float64)
    for c in (0, 2):
        wide = classifier.double()
        weight, shift = plain_gradient(features[c].double(), c, wide[:, :-1], wide[:, -1])
        for row in range(3):
            total = total + plain_distance(weight[row], wanted[c, row, :-1].double())
        if bias:
            total = total + plain_distance(shift, wanted[c, :, -1].double())
    held = torch.tensor([True, False, True])
    assert float(mismatch(features, classifier, wanted, held, bias)) == pytest.approx(float(total), rel=1e-5)


def test_retraining_equals_plain_sgd() -> None:
    features = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(2))
    ours = SMALL.retrain(features, torch.Generator().manual_seed(7), bias=True)
    draw = torch.Generator().manual_seed(7)
    weight = ((torch.rand(3, 6, generator=draw) * 2 - 1) / math.sqrt(5)).double().requires_grad_()
    inputs, labels = features.flatten(0, 1).double(), torch.tensor([0] * 4 + [1] * 4 + [2] * 4)
    optimizer = torch.optim.SGD([weight], lr=SMALL.lr)
    for _ in range(SMALL.epochs):
        order = torch.randperm(12, generator=draw)
        for start in range(0, 12, SMALL.batch):
            rows = order[start : start + SMALL.batch]
            optimizer.zero_grad()
            loss = F.cross_entropy(inputs[rows] @ weight[:, :-1].T + weight[:, -1], labels[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    torch.testing.assert_close(ours.double(), weight.detach(), atol=1e-6, rtol=1e-5)


def test_rounds_are_fedavgs_and_only_the_classifier_is_replaced_after_them(tmp_path: Path) -> None:
    ours, usual = (
        trained(job_of(tmp_path / "a", SMALL, data=lacking()), 2),
        trained(job_of(tmp_path / "b", data=lacking()), 2),
    )
    assert torch.equal(ours.model, usual.model)
    for part in ours.job.method.parts_with("after_rounds"):
        part.after_rounds(ours)
    classifier = ours.state[CLASSIFIER]
    assert torch.equal(ours.tensor("head.weight"), classifier[:, :-1])
    assert torch.equal(ours.tensor("head.bias"), classifier[:, -1])
    for name in usual.job.template.backbone.state_dict():
        assert torch.equal(ours.tensor(f"backbone.{name}"), usual.tensor(f"backbone.{name}"))


def test_features_of_a_class_that_nobody_has_stay_where_they_are(tmp_path: Path) -> None:
    data = lacking()
    data["y_train"] = data["y_train"] % 2
    job = job_of(tmp_path, SMALL, data={**data, "y_test": data["y_test"]})
    before = trained(job, 0).state[FEATURES].clone()
    after = trained(job, 1).state[FEATURES]
    assert [torch.equal(a, b) for a, b in zip(before, after, strict=True)] == [False, False, True]


def test_matching_brings_gradients_closer(tmp_path: Path) -> None:
    server = trained(job_of(tmp_path, CReFF(features=10, match_steps=1, epochs=1), data=lacking()), 1)
    more = trained(job_of(tmp_path / "b", CReFF(features=10, match_steps=60, epochs=1), data=lacking()), 1)
    assert more.figures["creff/mismatch"] < server.figures["creff/mismatch"]


def test_head_without_bias_stays_without(tmp_path: Path) -> None:
    server = trained(job_of(tmp_path, SMALL, LinearHead(bias=False), data=lacking()), 1)
    assert not server.state[CLASSIFIER][:, -1].any()
    for part in server.job.method.parts_with("after_rounds"):
        part.after_rounds(server)
    assert torch.equal(server.tensor("head.weight"), server.state[CLASSIFIER][:, :-1])


@pytest.mark.parametrize("method", ["creff+etf", "creff+fedrod", "creff+fedper"])
def test_method_without_a_learned_shared_classifier_is_refused(method: str) -> None:
    with pytest.raises(SettingError, match="leave creff out"):
        make_method(method, {})
