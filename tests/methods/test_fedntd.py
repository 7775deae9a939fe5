"""FedNTD's distillation against sums over the classes that are not true, and the limits in which it does nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedframe.methods.parts.fedntd import FedNTD, not_true
from tests.methods.plain import plain_rounds, same
from tests.methods.toy import job_of, lacking, trained


def test_fedntd_with_beta_zero_is_fedavg(tmp_path: Path) -> None:
    ours = trained(job_of(tmp_path / "a", FedNTD(beta=0.0), momentum=0.5), 2)
    assert torch.equal(ours.model, trained(job_of(tmp_path / "b", momentum=0.5), 2).model)


def test_true_class_is_left_out() -> None:
    logits = torch.arange(6.0).view(2, 3)
    assert not_true(logits, torch.tensor([1, 0])).tolist() == [[0.0, 2.0], [4.0, 5.0]]


@pytest.mark.slow
@pytest.mark.parametrize("tau", [1.0, 2.5])
def test_fedntd_equals_a_plain_loop(tmp_path: Path, tau: float) -> None:
    job = job_of(tmp_path, FedNTD(beta=0.7, tau=tau), epochs=2, data=lacking())

    def loss(model: nn.Sequential, start: nn.Sequential, x: Tensor, y: Tensor, client: int) -> Tensor:
        total = F.cross_entropy(model(x), y)
        for ours, theirs, label in zip(model(x), start(x).detach(), y.tolist(), strict=True):
            others = [c for c in range(3) if c != label]
            q = {c: torch.exp(ours[c] / tau) / sum(torch.exp(ours[k] / tau) for k in others) for c in others}
            g = {c: torch.exp(theirs[c] / tau) / sum(torch.exp(theirs[k] / tau) for k in others) for c in others}
            total = total + 0.7 * sum(g[c] * torch.log(g[c] / q[c]) for c in others) / len(x)
        return total

    same(job, trained(job, 2), plain_rounds(job, 2, loss))


def test_first_step_of_a_round_is_fedavgs(tmp_path: Path) -> None:
    """Local and server's model are one, so that the divergence is at its minimum."""
    ours, usual = (
        trained(job_of(tmp_path / name, *parts, steps=1), 1).model
        for name, parts in (("a", (FedNTD(beta=5.0),)), ("b", ()))
    )
    torch.testing.assert_close(ours, usual, atol=1e-6, rtol=1e-5)
