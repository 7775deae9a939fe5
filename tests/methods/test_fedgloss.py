"""FedGloSS: the ascent on the server against a plain loop, and the limits in which it is FedDyn and FedAvg."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from fedframe.methods.parts.feddyn import FedDyn
from fedframe.methods.parts.fedgloss import ASCENT, FedGloSS
from tests.methods.plain import batches, client_weight, difference, move, plain_model, same
from tests.methods.toy import job_of, trained


@pytest.mark.slow
def test_fedgloss_with_rho_zero_is_feddyn_and_without_alpha_fedavg(tmp_path: Path) -> None:
    ours = trained(job_of(tmp_path / "a", FedGloSS(alpha=0.2, rho=0.0), momentum=0.5), 3)
    assert torch.equal(ours.model, trained(job_of(tmp_path / "b", FedDyn(alpha=0.2), momentum=0.5), 3).model)
    neither = trained(job_of(tmp_path / "c", FedGloSS(alpha=0.0, rho=0.0), momentum=0.5), 3)
    assert torch.equal(neither.model, trained(job_of(tmp_path / "d", momentum=0.5), 3).model)


@pytest.mark.slow
def test_fedgloss_equals_a_plain_loop(tmp_path: Path) -> None:
    alpha, rho, rounds = 0.2, 0.3, 4
    job = job_of(tmp_path, FedGloSS(alpha=alpha, rho=rho, warm=0.5), rounds=rounds, participation=1.0)
    server = trained(job, rounds)
    shared = plain_model(job)
    size = sum(weight.numel() for weight in shared.parameters())
    weights = [client_weight(job, client) for client in range(3)]
    sigma = torch.zeros(size, dtype=torch.float64)
    own = [sigma.clone() for _ in range(3)]  # sigma_k
    pseudo = None
    for round in range(1, rounds + 1):
        start = copy.deepcopy(shared)
        if pseudo is not None:  # in round t the ascent is as long as rounds before it allow: rho min(1, (t - 1) / 2)
            move(start, rho * min(1.0, (round - 1) / 2) * pseudo / pseudo.norm())
        updates = []
        for client in range(3):
            model = copy.deepcopy(start)
            parts = own[client].split([weight.numel() for weight in model.parameters()])  # type: ignore[no-untyped-call]
            optimizer = torch.optim.SGD(model.parameters(), lr=job.settings.lr)
            for x, y in batches(job, round, client):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                for weight, begin, multiplier in zip(model.parameters(), start.parameters(), parts, strict=True):
                    assert weight.grad is not None
                    weight.grad += -multiplier.view_as(weight) + alpha * (weight.detach() - begin.detach())
                optimizer.step()
            updates.append(difference(model, start))
            own[client] = own[client] - alpha * updates[-1]
        mean = sum((w * u for w, u in zip(weights, updates, strict=True)), torch.zeros_like(sigma)) / sum(weights)
        sigma = sigma - alpha * mean  # all clients take part
        pseudo = -mean
        move(shared, mean - sigma / alpha)
    same(job, server, shared)


def test_ascent_grows_over_the_first_rounds_and_is_then_rho_long(tmp_path: Path) -> None:
    job = job_of(tmp_path, FedGloSS(rho=0.3, warm=0.5), rounds=4)
    assert not trained(job, 0).state[ASCENT].any()
    lengths = [float(trained(job, rounds).state[ASCENT].norm()) for rounds in (1, 2, 3)]
    torch.testing.assert_close(torch.tensor(lengths), torch.tensor([0.15, 0.3, 0.3]))
