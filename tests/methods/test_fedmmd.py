"""FedMMD's discrepancy against sums over pairs, its gradient, and the limit in which it is FedAvg."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedframe.errors import SettingError
from fedframe.methods.parts.features import Projection
from fedframe.methods.parts.fedmmd import FedMMD, squared_mmd
from fedframe.methods.recipes import make_method
from tests.methods.plain import average, batches, plain_model, same
from tests.methods.toy import job_of, trained

WIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)


def plain_mmd(x: Tensor, y: Tensor, widths: tuple[float, ...]) -> Tensor:
    both = [*x, *y]
    pairs = [float((a - b).detach().square().sum()) for i, a in enumerate(both) for j, b in enumerate(both) if i != j]
    scale = sum(pairs) / len(pairs)

    def mean(first: Tensor, second: Tensor) -> Tensor:
        total = torch.zeros((), dtype=x.dtype)
        for a in first:
            for b in second:
                for width in widths:
                    total = total + torch.exp(-(a - b).square().sum() / (2 * width * scale))
        return total / (len(first) * len(second))

    return mean(x, x) + mean(y, y) - 2 * mean(x, y)


def test_two_points_by_hand() -> None:
    """x = 0, y = 2: the mean squared distance is 4, so k(x, y) = exp(-4 / (2 4)) for the width 1."""
    x, y = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), 2.0, dtype=torch.float64)
    assert float(squared_mmd(x, y, (1.0,))) == pytest.approx(2 - 2 * math.exp(-0.5), rel=1e-12)


def test_value_and_gradient_equal_sums_over_pairs() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(6, 4, dtype=torch.float64, requires_grad=True), torch.randn(6, 4, dtype=torch.float64) + 1
    ours, plain = squared_mmd(x, y, WIDTHS), plain_mmd(x, y, WIDTHS)
    torch.testing.assert_close(ours, plain, atol=1e-12, rtol=1e-10)
    (first,), (second,) = torch.autograd.grad(ours, x), torch.autograd.grad(plain, x)
    torch.testing.assert_close(first, second, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("points", [torch.randn(5, 3), torch.ones(5, 3), torch.zeros(1, 3)])
def test_equal_features_cost_nothing_and_give_no_gradient(points: Tensor) -> None:
    x = points.clone().requires_grad_()
    value = squared_mmd(x, points, WIDTHS)
    assert float(value.detach()) == pytest.approx(0, abs=1e-6)
    (gradient,) = torch.autograd.grad(value, x)
    assert float(gradient.abs().max()) < 1e-6


def test_discrepancy_is_never_negative_also_of_nearly_equal_features() -> None:
    torch.manual_seed(0)
    x = 100 + torch.randn(32, 16)
    values = [float(squared_mmd(x + step * torch.randn(32, 16), x, WIDTHS)) for step in (1e-4, 1e-2, 1.0)]
    assert min(values) > -1e-6
    assert values == sorted(values)


def test_fedmmd_with_weight_zero_is_fedavg(tmp_path: Path) -> None:
    ours = trained(job_of(tmp_path / "a", FedMMD(weight=0.0)), 2)
    assert torch.equal(ours.model, trained(job_of(tmp_path / "b"), 2).model)


@pytest.mark.slow
def test_fedmmd_equals_a_plain_loop(tmp_path: Path) -> None:
    job = job_of(tmp_path, FedMMD(weight=0.7, widths=(0.5, 2.0)), epochs=2, lr=0.05)
    server = trained(job, 2)
    shared = plain_model(job)
    for round in (1, 2):
        locals_, weights = [], []
        start = copy.deepcopy(shared)
        for client in range(len(job.federation)):
            model = copy.deepcopy(shared)
            optimizer = torch.optim.SGD(model.parameters(), lr=job.settings.lr)
            for x, y in batches(job, round, client):
                z, frozen = model[0](x), start[0](x).detach()
                gap = plain_mmd(z, frozen, (0.5, 2.0))
                optimizer.zero_grad()
                (F.cross_entropy(model[1](z), y) + 0.7 * gap).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            locals_.append(model)
            weights.append(float(len(job.federation.train[client])))
        average(locals_, weights, shared)
    same(job, server, shared)


def test_width_that_cannot_be_is_refused_with_the_default() -> None:
    with pytest.raises(SettingError, match=r"fedmmd.widths .* the default is \(0.25"):
        make_method("fedmmd", {"fedmmd": {"widths": [0.0]}})


def test_features_are_those_that_reach_the_classifier_and_the_servers_are_as_in_prediction(tmp_path: Path) -> None:
    """Behind a projection; the server's model normalises with its own statistics, not with the batch's."""
    part = FedMMD(weight=0.5)
    job = job_of(tmp_path, part, Projection(dim=4), model="tests.models.normed:normed")
    server = trained(job, 1)
    runtime = server.engine.runtime  # type: ignore[attr-defined]
    context = runtime.begin(server.build_request("train", 2), 0)
    frozen = copy.deepcopy(runtime.model).eval()
    context.inputs = job.federation.source.batch(job.federation.source.train, context.rows[:8])
    runtime.model.train()
    context.features = runtime.model(context.inputs)
    context.embedding = job.method.refine(runtime.model, context.features)
    with torch.no_grad():
        expected = 0.5 * squared_mmd(context.embedding, job.method.embed(frozen, context.inputs), WIDTHS)
    assert float(expected) > 1e-3  # batch statistics are not the running ones
    torch.testing.assert_close(part.penalty(context), expected)
