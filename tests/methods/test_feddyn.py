"""FedDyn against Algorithm 1 in plain float64, by hand for two clients, and where it is FedAvg."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedframe.core.message import Message
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.methods.parts.feddyn import DRIFT, SHIFT, FedDyn
from fedframe.methods.parts.fedper import FedPer
from tests.helpers import nothing
from tests.methods.plain import average, batches, plain_model, same
from tests.methods.toy import job_of, trained


def test_feddyn_with_alpha_zero_is_fedavg(tmp_path: Path) -> None:
    dyn = trained(job_of(tmp_path / "a", FedDyn(alpha=0.0), participation=0.67), 3)
    assert torch.equal(dyn.model, trained(job_of(tmp_path / "b", participation=0.67), 3).model)
    assert dyn.state == {}


def test_first_round_on_the_client_has_no_linear_term_and_the_server_takes_the_step_twice(tmp_path: Path) -> None:
    """Full participation: theta_1 = theta_0 + mean + mean, because h / alpha is minus the mean itself."""
    settings: dict[str, Any] = {"steps": 1}  # at its first step a client stands on theta_0: no quadratic term either
    plain, dyn = (trained(job_of(tmp_path / n, *p, **settings), 1) for n, p in (("a", ()), ("b", (FedDyn(),))))
    start = plain.layout.flatten(dict(plain.job.template.state_dict()))
    torch.testing.assert_close(dyn.model - start, 2 * (plain.model - start), atol=1e-6, rtol=1e-5)


def test_two_clients_by_hand(tmp_path: Path) -> None:
    """Samples 30 and 10 of 72 in all; updates 1 and 5: mean 2, D = (30 + 50) / 72, then the same again."""
    job = job_of(tmp_path, FedDyn(alpha=0.5), local_test=0)
    assert len(job.federation.train.values) == 72
    server = Server(job, InlineEngine(job), nothing)
    size = server.layout.size
    for round in (1, 2):
        merger = server.merger()
        for samples, value in ((30.0, 1.0), (10.0, 5.0)):
            merger.add(Message("train", round, 0, {"update": torch.full((size,), value)}), samples)
        step = merger.finish()
        assert float(step[0]) == pytest.approx(2 + round * 80 / 72, rel=1e-6)
        assert float(server.state[DRIFT][0]) == pytest.approx(round * 80 / 72, rel=1e-6)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_feddyn_equals_a_plain_loop(tmp_path: Path, weighting: str, momentum: float) -> None:
    alpha = 0.3
    job = job_of(
        tmp_path, FedDyn(alpha=alpha), epochs=2, lr=0.05, momentum=momentum, weighting=weighting, participation=0.67
    )
    server = trained(job, 4)
    shared = plain_model(job)
    count = len(job.federation)
    sizes = [float(len(job.federation.train[k])) if weighting == "samples" else 1.0 for k in range(count)]
    own = [[torch.zeros_like(p) for p in shared.parameters()] for _ in range(count)]  # the paper's grad L_k
    h = [torch.zeros_like(p) for p in shared.parameters()]
    took_part = set()
    for round in (1, 2, 3, 4):
        locals_, weights, chosen = [], [], server.select_clients(round)
        assert len(chosen) == 2
        took_part |= {*chosen}
        for client in chosen:
            model = copy.deepcopy(shared)
            optimizer = torch.optim.SGD(model.parameters(), lr=job.settings.lr, momentum=momentum)
            for x, y in batches(job, round, client):
                loss = F.cross_entropy(model(x), y)
                for p, start, g in zip(model.parameters(), shared.parameters(), own[client], strict=True):
                    loss = loss - (g * p).sum() + alpha / 2 * (p - start.detach()).square().sum()
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            moved = [a.detach() - b.detach() for a, b in zip(model.parameters(), shared.parameters(), strict=True)]
            own[client] = [g - alpha * m for g, m in zip(own[client], moved, strict=True)]
            h = [a - alpha * sizes[client] / sum(sizes) * m for a, m in zip(h, moved, strict=True)]
            locals_.append(model)
            weights.append(sizes[client])
        average(locals_, weights, shared)
        with torch.no_grad():
            for p, a in zip(shared.parameters(), h, strict=True):
                p.sub_(a / alpha)
    assert took_part == {0, 1, 2}
    same(job, server, shared)
    drift = job.roles.layout.trainable_views(server.state[DRIFT])["head.weight"]
    torch.testing.assert_close(drift.double(), -h[-2] / alpha, atol=1e-5, rtol=1e-4)
    for k in range(count):  # what a client keeps is its own, and h is the mean over all of them
        kept = job.roles.layout.trainable_views(job.store.load(k, before=5)[DRIFT])["head.weight"]
        torch.testing.assert_close(kept.double(), -own[k][-2] / alpha, atol=1e-5, rtol=1e-4)


def test_correction_rests_in_the_client_stage(tmp_path: Path) -> None:
    server = trained(job_of(tmp_path, FedDyn(alpha=1.0)), 1)
    runtime = server.engine.runtime  # type: ignore[attr-defined]
    context = runtime.begin(server.build_request("personalise", 2), 0)
    assert SHIFT not in context.scratch


def test_what_stays_on_the_client_has_neither_term(tmp_path: Path) -> None:
    """After one step from the server's model, where the terms are still zero, classifiers are FedPer's."""
    heads = []
    for name, parts in (("a", (FedPer(), FedDyn(alpha=0.5))), ("b", (FedPer(),))):
        job = job_of(tmp_path / name, *parts, steps=1)
        server = trained(job, 1)
        heads.append(job.store.load(0, before=2)["model/head.weight"])
        server.run_round(2, nothing)
    assert torch.equal(*heads)
