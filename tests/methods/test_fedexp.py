"""FedExP against Eq. 6 in plain float64, by hand for two clients, where it is FedAvg, and with other parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedframe.core.message import Message
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import SettingError
from fedframe.methods.parts.fedexp import FedExP
from fedframe.methods.parts.prox import Prox
from fedframe.methods.recipes import make_method
from fedframe.network.compatibility import check_secure_aggregation
from fedframe.settings import Settings
from tests.helpers import blobs, nothing
from tests.methods.plain import client_weight, difference, move, plain_model, same, train_locally
from tests.methods.toy import job_of, trained


def at_odds() -> dict[str, Any]:
    """Clients of different sizes that give the same inputs different labels."""
    data = blobs(clients=5)
    data["user_train"] = np.repeat(np.arange(5), [36, 30, 24, 18, 12])
    data["y_train"] = (data["y_train"] + data["user_train"]) % 3
    return data


def step_of(tmp_path: Path, part: FedExP, *updates: tuple[float, float]) -> tuple[float, float, int]:
    """Step and eta for constant updates, given with their clients' samples; and the number of weights."""
    job = job_of(tmp_path, part)
    server = Server(job, InlineEngine(job), nothing)
    merger, size = server.merger(), server.layout.trainable
    for samples, value in updates:
        update = torch.full((server.layout.size,), value)
        reply = Message("train", 1, 0, {"update": update, "fedexp/square": torch.tensor([size * value**2])})
        merger.add(reply, samples)
        server.uploads.add(reply, samples)
    step = merger.finish()
    assert bool((step == step[0]).all())
    return float(step[0]), server.figures["fedexp/eta"], size


def test_two_clients_by_hand(tmp_path: Path) -> None:
    """Samples 30 and 10, updates 3 and -5: mean 1, mean square 13, so that eta = 13 / 2 without eps."""
    assert step_of(tmp_path / "a", FedExP(eps=0.0), (30, 3.0), (10, -5.0))[:2] == (6.5, 6.5)
    size = step_of(tmp_path / "b", FedExP(), (30, 3.0), (10, -5.0))[2]
    step, eta, _ = step_of(tmp_path / "c", FedExP(eps=size), (30, 3.0), (10, -5.0))  # 13 n / (2 (n + n))
    assert (step, eta) == pytest.approx((3.25, 3.25))


def test_a_step_is_never_shorter_than_fedavgs(tmp_path: Path) -> None:
    """Updates 3 and -1: mean 2, mean square 7, and 7 / 8 is less than 1."""
    assert step_of(tmp_path, FedExP(eps=0.0), (30, 3.0), (10, -1.0))[:2] == (2.0, 1.0)


def test_updates_that_cancel_leave_the_model_where_it_is(tmp_path: Path) -> None:
    assert step_of(tmp_path / "a", FedExP(eps=0.0), (10, 2.0), (10, -2.0))[:2] == (0.0, 1.0)
    assert step_of(tmp_path / "b", FedExP(), (10, 2.0), (10, -2.0))[0] == 0.0
    assert step_of(tmp_path / "c", FedExP(eps=0.0), (10, 0.0))[:2] == (0.0, 1.0)


@pytest.mark.parametrize(("part", "participation"), [(FedExP(), 0.33), (FedExP(eps=1e9), 0.67)])
def test_where_eta_is_one_it_is_fedavg(tmp_path: Path, part: FedExP, participation: float) -> None:
    """A client alone agrees with itself, and a large eps leaves nothing to extrapolate."""
    settings: dict[str, Any] = {"participation": participation, "momentum": 0.5}
    exp = trained(job_of(tmp_path / "a", part, **settings), 3)
    assert exp.figures["fedexp/eta"] == 1.0
    assert torch.equal(exp.model, trained(job_of(tmp_path / "b", **settings), 3).model)


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_fedexp_equals_a_plain_loop_with_and_without_prox(tmp_path: Path, weighting: str, mu: float) -> None:
    eps, lr = 0.01, 0.1
    parts = (FedExP(eps=eps), Prox(mu)) if mu else (FedExP(eps=eps),)
    job = job_of(tmp_path, *parts, data=at_odds(), epochs=5, lr=lr, weighting=weighting, participation=0.8)
    server = trained(job, 4)
    shared = plain_model(job)

    def pull(model: nn.Sequential) -> None:
        for weight, start in zip(model.parameters(), shared.parameters(), strict=True):
            assert weight.grad is not None
            weight.grad += mu * (weight - start).detach()

    etas = []
    for round in (1, 2, 3, 4):
        chosen = server.select_clients(round)
        assert len(chosen) == 4
        updates = [difference(train_locally(job, shared, round, client, pull), shared) for client in chosen]
        total = sum(client_weight(job, client) for client in chosen)
        shares = [client_weight(job, client) / total for client in chosen]
        mean = torch.stack([share * update for share, update in zip(shares, updates, strict=True)]).sum(0)
        squares = sum(share * float(update.norm()) ** 2 for share, update in zip(shares, updates, strict=True))
        etas.append(max(1.0, squares / (2 * (float(mean.norm()) ** 2 + eps))))
        move(shared, etas[-1] * mean)
    assert min(etas) > 1.1  # or it would be FedAvg that is compared
    assert server.figures["fedexp/eta"] == pytest.approx(etas[-1], rel=1e-3)
    same(job, server, shared)


def test_sums_are_enough_for_secure_aggregation() -> None:
    check_secure_aggregation(Settings(secure=True), make_method("fedexp+prox", {}), 4)


def test_two_merges_are_refused() -> None:
    with pytest.raises(SettingError, match="'fedexp' and 'fedadam' both claim the merge slot; leave one out"):
        make_method("fedexp+fedadam", {})


@pytest.mark.parametrize("eps", [-1e-3, "small", float("inf")])
def test_bad_eps_is_refused_in_one_sentence(eps: Any) -> None:
    with pytest.raises(SettingError, match=r"^fedexp.eps = [^\n]*; the default is 0.001\.$"):
        make_method("fedexp", {"fedexp": {"eps": eps}})
