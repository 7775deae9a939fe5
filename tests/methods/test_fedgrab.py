"""Fed-GraB's controllers against a plain loop, what they remember, and the limit in which they do nothing."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedframe.core import ClientContext, Part
from fedframe.methods.parts.fedgrab import BALANCE, FedGraB
from tests.methods.plain import average, batches, client_weight, plain_model, same
from tests.methods.toy import job_of, lacking, trained


@dataclass(frozen=True)
class Sigmoids(Part):
    """The sum over classes of binary cross-entropy, mean over the batch."""

    name: ClassVar[str] = "sigmoids"

    def loss(self, logits: Tensor, labels: Tensor, context: ClientContext) -> Tensor:
        """Nothing is balanced."""
        targets = F.one_hot(labels, logits.shape[1]).float()
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / len(labels)


@pytest.mark.slow
def test_fedgrab_without_gains_is_fedavg_with_sigmoids(tmp_path: Path) -> None:
    ours = trained(job_of(tmp_path / "a", FedGraB(0.0, 0.0, 0.0), momentum=0.5), 2)
    assert torch.equal(ours.model, trained(job_of(tmp_path / "b", Sigmoids(), momentum=0.5), 2).model)


class Controller:
    """One class on one client, in plain numbers."""

    def __init__(self) -> None:
        self.balance = self.output = self.last = self.before = 0.0

    def weight(self, kp: float, ki: float, kd: float) -> float:
        error = -self.balance
        self.output += kp * (error - self.last) + ki * error + kd * (error - 2 * self.last + self.before)
        self.last, self.before = error, self.last
        return (10 / 9) / (1 / 9 + math.exp(-0.05 * self.output))


@pytest.mark.slow
def test_fedgrab_equals_a_plain_loop_over_rounds(tmp_path: Path) -> None:
    gains = (8.0, 0.3, 0.2)
    job = job_of(tmp_path, FedGraB(*gains), epochs=2, batch=7, data=lacking())
    server = trained(job, 3)
    shared = plain_model(job)
    controllers = [[Controller() for _ in range(3)] for _ in range(3)]
    for round in (1, 2, 3):
        locals_ = []
        for client in range(3):
            model = copy.deepcopy(shared)
            optimizer = torch.optim.SGD(model.parameters(), lr=job.settings.lr)
            for x, y in batches(job, round, client):
                weights = [controller.weight(*gains) for controller in controllers[client]]
                logits = model(x)
                push = torch.zeros_like(logits)
                for i, label in enumerate(y.tolist()):
                    for c in range(3):
                        p = 1 / (1 + math.exp(-float(logits[i, c].detach())))
                        push[i, c] = (weights[c] * (p - 1) if c == label else p) / len(x)
                        controllers[client][c].balance += abs(float(push[i, c])) * (1 if c == label else -1)
                optimizer.zero_grad()
                logits.backward(push)
                optimizer.step()
            locals_.append(model)
        average(locals_, [client_weight(job, client) for client in range(3)], shared)
    same(job, server, shared)
    kept = job.store.load(0, 4)[BALANCE]
    expected = [[getattr(each, name) for each in controllers[0]] for name in ("balance", "output", "last", "before")]
    torch.testing.assert_close(kept.double(), torch.tensor(expected, dtype=torch.float64), atol=1e-3, rtol=1e-3)


def test_class_that_is_pushed_more_than_pulled_gets_a_larger_weight() -> None:
    part, state = FedGraB(), torch.zeros(4, 3)
    assert part.control(state).tolist() == [1.0, 1.0, 1.0]
    state[0] = torch.tensor([-2.0, 0.0, 2.0])
    weights = part.control(state)
    assert weights[0] > 1 == weights[1] > weights[2]
    assert bool(part.control(state * 1e6).isfinite().all())


def test_probabilities_sum_to_one_and_rows_have_the_loss_of_the_batch() -> None:
    logits, labels = torch.tensor([[2.0, -1.0, -500.0], [-500.0, -500.0, -500.0]]), torch.tensor([0, 2])
    torch.testing.assert_close(FedGraB().probabilities(logits).sum(1), torch.ones(2))
    rows = FedGraB().row_losses(logits[None], labels[None], [])
    targets = F.one_hot(labels, 3).float()
    wanted = F.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / 2
    torch.testing.assert_close(rows.mean(), wanted)
