"""FedUV's two penalties against sums over classes and pairs, and the limit in which it is FedAvg."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedframe.methods.parts.feduv import FedUV, crowding, lacking_variance
from tests.methods.plain import plain_rounds, same
from tests.methods.toy import job_of, trained


def plain_variance(p: Tensor) -> Tensor:
    n, classes = p.shape
    total = torch.zeros((), dtype=p.dtype)
    for c in range(classes):
        mean = sum(p[i, c] for i in range(n)) / n
        variance = sum((p[i, c] - mean) ** 2 for i in range(n)) / (n - 1)
        gap = 1 / math.sqrt(classes) - torch.sqrt(torch.as_tensor(variance))
        total = total + (gap if float(gap) > 0 else 0.0) / classes
    return total


def plain_crowding(z: Tensor) -> Tensor:
    pairs = [((z[i] - z[j]) ** 2).sum() for i in range(len(z)) for j in range(i + 1, len(z))]
    ordered = sorted((pair for pair in pairs if float(pair) > 0), key=float)
    middle = ordered[(len(ordered) - 1) // 2]
    return sum(torch.exp(-pair / middle) for pair in pairs) / len(pairs)  # type: ignore[return-value]


def test_one_sample_of_every_class_that_is_predicted_surely_lacks_nothing() -> None:
    for classes in (2, 3, 10):
        surely = torch.eye(classes, dtype=torch.float64)
        assert float(lacking_variance(surely)) == pytest.approx(0, abs=1e-9)
        deviation = statistics.stdev([1.0] + [0.0] * (classes - 1))
        constant = torch.full((classes, classes), 1 / classes, dtype=torch.float64)
        assert float(lacking_variance(constant)) == pytest.approx(deviation, abs=1e-5)


def test_values_and_gradients_equal_sums() -> None:
    z = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    for ours, plain in (
        (crowding(z), plain_crowding(z)),
        (lacking_variance(z.softmax(1)), plain_variance(z.softmax(1))),
    ):
        torch.testing.assert_close(ours, plain, atol=1e-9, rtol=1e-9)
        (first,), (second,) = torch.autograd.grad(ours, z), torch.autograd.grad(plain, z)
        torch.testing.assert_close(first, second, atol=1e-9, rtol=1e-7)


def test_crowding_does_not_change_with_the_length_of_features() -> None:
    z = torch.randn(6, 3, dtype=torch.float64)
    torch.testing.assert_close(crowding(z), crowding(100 * z))


def test_equal_features_and_probabilities_give_finite_gradients() -> None:
    z = torch.ones(5, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(crowding(z) + lacking_variance(z.softmax(1)), z)
    assert bool(gradient.isfinite().all())
    assert float(crowding(z)) == 0


def test_feduv_without_weights_is_fedavg(tmp_path: Path) -> None:
    ours = trained(job_of(tmp_path / "a", FedUV(variance=0.0, uniformity=0.0), momentum=0.5), 2)
    assert torch.equal(ours.model, trained(job_of(tmp_path / "b", momentum=0.5), 2).model)


@pytest.mark.slow
def test_feduv_equals_a_plain_loop(tmp_path: Path) -> None:
    job = job_of(tmp_path, FedUV(variance=1.5, uniformity=0.4), epochs=2, lr=0.05, batch=9)

    def loss(model: nn.Sequential, start: nn.Sequential, x: Tensor, y: Tensor, client: int) -> Tensor:
        z = model[0](x)
        total = F.cross_entropy(model[1](z), y)
        if len(x) > 1:
            total = total + 1.5 * plain_variance(model[1](z).softmax(1)) + 0.4 * plain_crowding(z)
        return total

    same(job, trained(job, 2), plain_rounds(job, 2, loss))
