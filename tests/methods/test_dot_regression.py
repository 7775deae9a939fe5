"""Dot regression against its printed formula and a plain loop in float64, and its limits."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedframe.errors import SettingError
from fedframe.methods.parts.dot_regression import DotRegression
from fedframe.methods.parts.features import Normalise, Temperature
from fedframe.methods.parts.frame_head import SimplexETF
from fedframe.methods.recipes import make_method
from tests.methods.plain import average, batches, plain_model, same
from tests.methods.toy import job_of, trained


def work_of(features: Tensor, classifier: Tensor) -> Any:
    head = nn.Linear(classifier.shape[1], classifier.shape[0], bias=False)
    head.weight = nn.Parameter(classifier, requires_grad=False)
    return SimpleNamespace(embedding=features, model=SimpleNamespace(head=head))


def test_loss_equals_the_printed_formula_for_any_norms() -> None:
    torch.manual_seed(0)
    h, w = torch.randn(6, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    labels = torch.tensor([0, 2, 1, 1, 0, 2])
    e_w, e_h = 0.25, 9.0
    plain = 0.0
    for i in range(6):
        class_vector = w[labels[i]] / w[labels[i]].norm() * math.sqrt(e_w)
        feature = h[i] / h[i].norm() * math.sqrt(e_h)
        dot = float(class_vector @ feature)
        plain += (dot - math.sqrt(e_w * e_h)) ** 2 / (2 * math.sqrt(e_w * e_h)) / 6
    found = DotRegression(scale=math.sqrt(e_w * e_h)).loss(torch.empty(0), labels, work_of(h, w))
    assert float(found) == pytest.approx(plain, rel=1e-12)


def test_feature_on_its_class_vector_has_no_loss_and_no_gradient() -> None:
    w = torch.randn(3, 5, dtype=torch.float64)
    h = (7 * w[[1, 2]]).requires_grad_()
    loss = DotRegression().loss(torch.empty(0), torch.tensor([1, 2]), work_of(h, w))
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == pytest.approx(0, abs=1e-24)
    assert h.grad is not None
    assert float(h.grad.abs().max()) < 1e-12


def test_other_classes_do_not_push() -> None:
    h, w = torch.randn(4, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    labels = torch.zeros(4, dtype=torch.int64)
    other = torch.cat([w[:1], torch.randn(2, 5, dtype=torch.float64)])
    first, second = (DotRegression().loss(torch.empty(0), labels, work_of(h, frame)) for frame in (w, other))
    assert torch.equal(first, second)


@pytest.mark.slow
def test_run_equals_a_plain_loop(tmp_path: Path) -> None:
    job = job_of(tmp_path, SimplexETF(scale=1.5), DotRegression(scale=3.0), epochs=2, momentum=0.5)
    server = trained(job)
    shared = plain_model(job)
    for round in (1, 2):
        locals_, weights = [], []
        for client in range(len(job.federation)):
            model = copy.deepcopy(shared)
            optimizer = torch.optim.SGD(model[0].parameters(), lr=job.settings.lr, momentum=0.5)
            for x, y in batches(job, round, client):
                h, w = model[0](x), model[1].get_parameter("weight")
                total = torch.zeros((), dtype=torch.float64)
                for i in range(len(x)):
                    cosine = w[y[i]] @ h[i] / (w[y[i]].norm() * h[i].norm())
                    total = total + 3.0 / 2 * (cosine - 1) ** 2
                optimizer.zero_grad()
                (total / len(x)).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            locals_.append(model)
            weights.append(float(len(job.federation.train[client])))
        average(locals_, weights, shared)
    same(job, server, shared)


def test_normalisation_and_temperature_change_nothing(tmp_path: Path) -> None:
    plain = trained(job_of(tmp_path / "a", SimplexETF(), DotRegression()))
    scaled = trained(job_of(tmp_path / "b", SimplexETF(), Normalise(), Temperature(), DotRegression()))
    assert float(scaled.tensor("extras.temperature.beta")) == pytest.approx(10, abs=1e-5)
    for name in plain.layout.views(plain.model):
        torch.testing.assert_close(scaled.tensor(name), plain.tensor(name), atol=1e-5, rtol=1e-4)


def test_learned_classifier_is_refused() -> None:
    with pytest.raises(SettingError, match=r"'dot_regression' pushes no classes apart.*'linear'.*such as etf"):
        make_method("fedavg+dot_regression", {})
