"""FedProx, SCAFFOLD and MOON against plain loops in float64, and the limits in which they are FedAvg."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedframe.core.optimizers import normalised_steps
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import SettingError
from fedframe.methods.parts.moon import Moon
from fedframe.methods.parts.prox import Prox
from fedframe.methods.parts.scaffold import Scaffold
from tests.helpers import blobs, nothing
from tests.methods.plain import average, batches, plain_model, same
from tests.methods.toy import job_of, trained


def test_prox_with_mu_zero_is_fedavg(tmp_path: Path) -> None:
    assert torch.equal(trained(job_of(tmp_path, Prox(mu=0.0))).model, trained(job_of(tmp_path)).model)


def test_prox_equals_a_plain_loop_with_the_squared_distance(tmp_path: Path) -> None:
    job = job_of(tmp_path, Prox(mu=0.7), epochs=2, momentum=0.5)
    server = trained(job)
    shared = plain_model(job)
    for round in (1, 2):
        locals_, weights = [], []
        for client in range(len(job.federation)):
            model = copy.deepcopy(shared)
            optimizer = torch.optim.SGD(model.parameters(), lr=job.settings.lr, momentum=0.5)
            for x, y in batches(job, round, client):
                distance = sum(
                    ((a - b.detach()) ** 2).sum() for a, b in zip(model.parameters(), shared.parameters(), strict=True)
                )
                optimizer.zero_grad()
                (F.cross_entropy(model(x), y) + 0.7 / 2 * distance).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            locals_.append(model)
            weights.append(float(len(job.federation.train[client])))
        average(locals_, weights, shared)
    same(job, server, shared)


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_scaffold_equals_a_plain_loop(tmp_path: Path, momentum: float) -> None:
    job = job_of(tmp_path, Scaffold(), epochs=2, momentum=momentum, lr=0.05)
    server = trained(job, 3)
    shared = plain_model(job)
    count = len(job.federation)
    c = [torch.zeros_like(p) for p in shared.parameters()]
    own = [[torch.zeros_like(p) for p in shared.parameters()] for _ in range(count)]
    for round in (1, 2, 3):
        locals_, weights, changes = [], [], []
        for client in range(count):
            model = copy.deepcopy(shared)
            velocity = [torch.zeros_like(p) for p in model.parameters()]
            entered = [0.0]  # with which weight each gradient has entered the way so far
            momentum_of: list[float] = []
            for x, y in batches(job, round, client):
                model.zero_grad()
                F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                momentum_of = [momentum * value for value in momentum_of] + [1.0]
                entered.append(sum(momentum_of))
                with torch.no_grad():
                    for p, v, server_c, client_c in zip(model.parameters(), velocity, c, own[client], strict=True):
                        assert p.grad is not None
                        v.mul_(momentum).add_(p.grad - client_c + server_c)
                        p.sub_(job.settings.lr * v)
            mass = sum(entered)
            new = [
                client_c - server_c + (a.detach() - b.detach()) / (mass * job.settings.lr)
                for client_c, server_c, a, b in zip(
                    own[client], c, shared.parameters(), model.parameters(), strict=True
                )
            ]
            changes.append([a - b for a, b in zip(new, own[client], strict=True)])
            own[client] = new
            locals_.append(model)
            weights.append(float(len(job.federation.train[client])))
        average(locals_, weights, shared)
        shares = [weight / sum(weights) for weight in weights]
        c = [old + sum(s * change[i] for s, change in zip(shares, changes, strict=True)) for i, old in enumerate(c)]
    same(job, server, shared)
    torch.testing.assert_close(
        job.roles.layout.trainable_views(server.state["scaffold/c"])["head.weight"].double(),
        c[-2],
        atol=3e-4,
        rtol=1e-3,
    )


def test_scaffold_starts_as_fedavg_and_then_differs(tmp_path: Path) -> None:
    assert torch.equal(trained(job_of(tmp_path / "a", Scaffold()), 1).model, trained(job_of(tmp_path / "b"), 1).model)
    assert not torch.equal(
        trained(job_of(tmp_path / "c", Scaffold()), 2).model, trained(job_of(tmp_path / "d"), 2).model
    )


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_scaffold_moves_the_servers_variate_by_the_share_of_those_who_took_part(tmp_path: Path, weighting: str) -> None:
    data = blobs(clients=3, each=24)
    data["user_train"] = np.repeat([0, 1, 2], [12, 24, 36])
    job = job_of(tmp_path, Scaffold(), data=data, participation=0.34, weighting=weighting)
    server = Server(job, InlineEngine(job), nothing)
    chosen = server.select_clients(1)
    assert len(chosen) == 1
    server.run_round(1, nothing)
    own = job.store.load(chosen[0], before=2)["scaffold/c"]
    sizes = job.federation.train.sizes()
    share = float(sizes[chosen[0]] / sizes.sum()) if weighting == "samples" else 1 / 3
    torch.testing.assert_close(server.state["scaffold/c"], own * share)


def test_corrections_of_scaffold_cancel_in_the_mean_that_moves_the_model(tmp_path: Path) -> None:
    """With everybody in the round, what is added to the clients' gradients is nothing on (weighted) average."""
    data = blobs(clients=3, each=24)
    data["user_train"] = np.repeat([0, 1, 2], [6, 18, 48])
    job = job_of(tmp_path, Scaffold(), data=data)
    server = trained(job, 2)
    sizes = job.federation.train.sizes().double()
    own = torch.stack([job.store.load(client, before=3)["scaffold/c"] for client in range(3)]).double()
    torch.testing.assert_close((sizes / sizes.sum()) @ own, server.state["scaffold/c"].double(), atol=1e-6, rtol=1e-5)


def test_scaffold_refuses_an_optimizer_without_a_step_length() -> None:
    from fedframe.settings import Settings

    with pytest.raises(SettingError, match="scaffold needs optimizer = 'sgd'"):
        Scaffold().check_settings(Settings(optimizer="adam"))


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_gradient_mass_is_how_far_unit_gradients_move(steps: int, momentum: float) -> None:
    way = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1
        way += velocity
    assert normalised_steps(steps, momentum) == pytest.approx(way, rel=1e-12)


def test_moon_with_mu_zero_is_fedavg(tmp_path: Path) -> None:
    assert torch.equal(trained(job_of(tmp_path / "a", Moon(mu=0.0)), 2).model, trained(job_of(tmp_path / "b"), 2).model)


@pytest.mark.slow
def test_moon_equals_a_plain_loop(tmp_path: Path) -> None:
    job = job_of(tmp_path, Moon(mu=2.0, temperature=0.4), epochs=2, lr=0.05)
    server = trained(job, 3)
    shared = plain_model(job)
    previous: dict[int, nn.Sequential] = {}
    for round in (1, 2, 3):
        locals_, weights = [], []
        start = copy.deepcopy(shared)
        for client in range(len(job.federation)):
            model = copy.deepcopy(shared)
            last = previous.get(client, start)
            optimizer = torch.optim.SGD(model.parameters(), lr=job.settings.lr)
            for x, y in batches(job, round, client):
                z = model[0](x)
                total = torch.zeros((), dtype=torch.float64)
                for i in range(len(x)):
                    zi, gi, pi = z[i], start[0](x)[i].detach(), last[0](x)[i].detach()
                    near = torch.exp(zi @ gi / (zi.norm() * gi.norm()) / 0.4)
                    far = torch.exp(zi @ pi / (zi.norm() * pi.norm()) / 0.4)
                    total = total - torch.log(near / (near + far))
                optimizer.zero_grad()
                (F.cross_entropy(model[1](z), y) + 2.0 * total / len(x)).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            locals_.append(model)
            weights.append(float(len(job.federation.train[client])))
            previous[client] = model
        average(locals_, weights, shared)
    same(job, server, shared)
