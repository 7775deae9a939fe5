"""FedDecorr's penalty against correlations that are counted one by one, and the limit in which it is FedAvg."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedframe.methods.parts.feddecorr import FedDecorr, squared_correlations
from tests.methods.plain import plain_rounds, same
from tests.methods.toy import job_of, trained


def plain_squares(z: Tensor) -> Tensor:
    """The sum over pairs of different numbers of their squared correlation, with 1e-8 added to variances."""
    n, d = z.shape
    total = torch.zeros((), dtype=z.dtype)
    for a in range(d):
        for b in range(d):
            if a != b:
                x, y = z[:, a] - z[:, a].mean(), z[:, b] - z[:, b].mean()
                covariance, var_x, var_y = ((p * q).sum() / (n - 1) for p, q in ((x, y), (x, x), (y, y)))
                total = total + covariance**2 / ((var_x + 1e-8) * (var_y + 1e-8))
    return total


def test_sum_of_squares_is_that_of_numpys_correlations() -> None:
    z = torch.randn(20, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    correlations = np.corrcoef(z.numpy().T)
    assert float(squared_correlations(z)) == pytest.approx((correlations**2).sum() - 5, rel=1e-6)


def test_constant_numbers_correlate_with_none_and_give_finite_gradients() -> None:
    z = torch.randn(6, 4)
    z[:, 1] = 0.0
    z.requires_grad_()
    (gradient,) = torch.autograd.grad(squared_correlations(z), z)
    assert bool(gradient.isfinite().all())
    torch.testing.assert_close(squared_correlations(z), squared_correlations(z[:, [0, 2, 3]]))


def test_feddecorr_with_beta_zero_is_fedavg(tmp_path: Path) -> None:
    ours = trained(job_of(tmp_path / "a", FedDecorr(beta=0.0), momentum=0.5), 2)
    assert torch.equal(ours.model, trained(job_of(tmp_path / "b", momentum=0.5), 2).model)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["code", "paper"])
def test_feddecorr_equals_a_plain_loop(tmp_path: Path, form: Any) -> None:
    job = job_of(tmp_path, FedDecorr(beta=0.3, form=form), epochs=2, lr=0.05, batch=11, model="mlp:6")

    def loss(model: nn.Sequential, start: nn.Sequential, x: Tensor, y: Tensor, client: int) -> Tensor:
        z = model[0](x)
        n, d = z.shape
        entropy = F.cross_entropy(model[1](z), y)
        if n == 1:
            return entropy
        mean = plain_squares(z) / (d * (d - 1))
        total: Tensor = entropy + 0.3 * (mean * (n - 1) ** 2 / n if form == "code" else mean * (d - 1) / d)
        return total

    same(job, trained(job, 2), plain_rounds(job, 2, loss))


def test_batch_of_one_sample_has_no_penalty(tmp_path: Path) -> None:
    ours = trained(job_of(tmp_path / "a", FedDecorr(), batch=1), 1)
    assert torch.equal(ours.model, trained(job_of(tmp_path / "b", batch=1), 1).model)
