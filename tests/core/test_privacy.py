"""Client-level privacy: updates are bounded, noise is as large as it says, and epsilon is what theory says."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
import torch

pytest.importorskip("dp_accounting")

from fedframe.api import run
from fedframe.core.client_runtime import ClientRuntime
from fedframe.core.job import Job
from fedframe.core.privacy import clipped, epsilon, local_noise, local_secret
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import SettingError
from fedframe.jobs.build import JobMaker
from fedframe.jobs.gather import gather
from fedframe.util.files import read_json
from tests.helpers import nothing
from tests.network.in_process import remote_engine

TASK: dict[str, Any] = {
    "data": "digits", "partition": "iid", "clients": 4, "data_share": 0.2, "rounds": 2, "epochs": 1, "model": "mlp:32",
    "workers": 1, "weighting": "uniform",
}  # fmt: skip


def job_of(folder: Path, **settings: Any) -> Job:
    return JobMaker(gather({**TASK, **settings}, None), None, None).make(folder)


def after_a_round(job: Job) -> tuple[torch.Tensor, Server]:
    """How far the model moved in one round."""
    server = Server(job, InlineEngine(job), print)
    before = server.model.clone()
    server.run_round(1, nothing)
    return (server.model - before).double(), server


def spread(count: int) -> float:
    """By how much the deviation of so many draws may be off, relatively: six of its own deviations.

    Noise has no seed: four would fail one run in 16,000 for each test, six one in 500 million.
    """
    return 6 / math.sqrt(2 * count)


def test_an_update_is_cut_to_the_bound_and_keeps_its_direction() -> None:
    update = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    short = clipped(update, 0.5)
    assert 0.4999 < float(short.double().norm()) <= 0.5
    assert torch.allclose(short / short.norm(), update / update.norm(), atol=1e-6)
    assert torch.equal(clipped(update, 1e6), update)


def test_with_a_wide_bound_and_hardly_any_noise_it_is_fedavg(tmp_path: Path) -> None:
    plain, _ = after_a_round(job_of(tmp_path / "a"))
    private, _ = after_a_round(job_of(tmp_path / "b", privacy_clip=1e3, privacy_noise=1e-12))
    assert torch.allclose(plain, private, atol=1e-7)


def test_the_model_moves_no_further_than_the_bound(tmp_path: Path) -> None:
    moved, _ = after_a_round(job_of(tmp_path, privacy_clip=0.01, privacy_noise=1e-9))
    assert 0.001 < float(moved.norm()) <= 0.01 * (1 + 1e-5)


def test_noise_on_the_server_is_as_large_as_it_says(tmp_path: Path) -> None:
    moved, server = after_a_round(job_of(tmp_path, privacy_clip=1e-6, privacy_noise=2e6))
    size = len(moved)
    assert float(moved.std()) == pytest.approx(2.0 / 4, rel=spread(size))  # z C / n
    assert "epsilon" in server.figures


def test_noise_is_not_that_of_the_seed(tmp_path: Path) -> None:
    settings = {"privacy_clip": 1.0, "privacy_noise": 1.0}
    first, _ = after_a_round(job_of(tmp_path / "a", **settings))
    second, _ = after_a_round(job_of(tmp_path / "b", **settings))
    assert float((first - second).std()) > 0.1


def test_a_client_asked_twice_gives_the_same_noise_and_another_order_gets_another(tmp_path: Path) -> None:
    update, model = torch.zeros(20_000), torch.zeros(5)
    first = local_noise(update, 3.0, tmp_path / "a", "noise 1 0", model)
    assert torch.equal(first, local_noise(update, 3.0, tmp_path / "a", "noise 1 0", model))
    others = [
        local_noise(update, 3.0, tmp_path / "b", "noise 1 0", model),  # another place has another secret
        local_noise(update, 3.0, tmp_path / "a", "noise 2 0", model),
        local_noise(update, 3.0, tmp_path / "a", "noise 1 0", model + 1),
        local_noise(
            update + 1e-30, 3.0, tmp_path / "a", "noise 1 0", model
        ),  # else a difference would be that of updates
        local_noise(update, 6.0, tmp_path / "a", "noise 1 0", model),  # else noise could be scaled away
    ]
    for other in others:
        assert abs(float(torch.corrcoef(torch.stack([first, other]))[0, 1])) < 0.04
    assert float(first.std()) == pytest.approx(3.0, rel=0.03)
    assert local_secret(tmp_path / "a") == local_secret(tmp_path / "a")
    assert (tmp_path / "a" / "privacy.key").stat().st_mode & 0o777 == 0o600


def test_noise_at_the_node_is_in_what_the_client_sends(tmp_path: Path) -> None:
    job = job_of(tmp_path, privacy_clip=1e-6, privacy_noise=2e6, privacy_at="node")
    server = Server(job, InlineEngine(job), print)
    order = server.build_request("train", 1)
    update = ClientRuntime(job).perform(order, 0).tensors["update"]
    assert float(update.double().std()) == pytest.approx(2.0, rel=spread(len(update)))
    assert torch.equal(update, ClientRuntime(job).perform(order, 0).tensors["update"])


def test_noise_at_the_node_cannot_be_taken_off_by_another_order(tmp_path: Path) -> None:
    """With a learning rate of next to nothing an answer is noise alone: it must not be that of another answer."""
    settings = {"privacy_clip": 1e-3, "privacy_noise": 1e3, "privacy_at": "node"}
    job = job_of(tmp_path, **settings)
    order = Server(job, InlineEngine(job), print).build_request("train", 1)
    first, second = (
        ClientRuntime(job).perform(each, 0).tensors["update"].double()
        for each in (order, replace(order, numbers={"lr": 1e-30}))
    )
    assert float((first - second).std()) == pytest.approx(math.sqrt(2), rel=0.1)


@pytest.mark.slow
def test_with_secure_aggregation_nodes_share_the_noise(tmp_path: Path) -> None:
    """The noise of any sum that can be unmasked is whole for each of its clients, who know their own share."""
    job = job_of(tmp_path / "run", privacy_clip=1e-6, privacy_noise=2e6, privacy_at="node", secure=True, min_clients=3)
    server = Server(job, remote_engine(job, tmp_path / "nodes", 4), print)
    before = server.model.clone()
    server.run_round(1, nothing)
    moved = (server.model - before).double()
    share = 2.0 / math.sqrt(3 - 1)
    assert float(moved.std()) == pytest.approx(share * math.sqrt(4) / 4, rel=spread(len(moved)))


# -- who is drawn ------------------------------------------------------------------------------------------------------
def draws(job: Job) -> list[list[int]]:
    server = Server(job, InlineEngine(job), print)
    return [sorted(server.select_clients(round)) for round in range(1, 21)]


@pytest.mark.slow
def test_who_is_drawn_is_not_in_the_seed(tmp_path: Path) -> None:
    """Epsilon counts on it: whoever knew the draw would know in which rounds to look for a client."""
    some: dict[str, Any] = {"clients": 10, "participation": 0.3}
    private = {**some, "privacy_clip": 1.0, "privacy_noise": 1.0}
    public = draws(job_of(tmp_path / "a", **some))
    assert public == draws(job_of(tmp_path / "b", **some))
    one, other = draws(job_of(tmp_path / "c", **private)), draws(job_of(tmp_path / "d", **private))
    assert one != public != other != one
    assert all(len(set(clients)) == 3 and set(clients) <= set(range(10)) for clients in one)
    assert len({tuple(clients) for clients in one}) > 5


def test_a_resumed_run_draws_the_same_clients(tmp_path: Path) -> None:
    """Else private state of a round that was cut off would stay with clients that the round is not repeated with."""
    private = {"clients": 10, "participation": 0.3, "privacy_clip": 1.0, "privacy_noise": 1.0}
    assert draws(job_of(tmp_path, **private)) == draws(job_of(tmp_path, **private))


# -- the accountant ----------------------------------------------------------------------------------------------------
def exact_delta(eps: float, mu: float) -> float:
    """Of the Gaussian mechanism (Balle and Wang, 2018, Theorem 8) with sensitivity mu in units of the noise."""
    cdf = NormalDist().cdf
    return cdf(mu / 2 - eps / mu) - math.exp(eps) * cdf(-mu / 2 - eps / mu)


@pytest.mark.parametrize(("z", "rounds"), [(1.0, 1), (2.0, 10), (5.0, 100)])
def test_epsilon_bounds_the_exact_one_from_above_and_closely(z: float, rounds: int) -> None:
    told = epsilon(z, 1e-5, rounds, 10, 10, True)
    mu = math.sqrt(rounds) / z
    assert exact_delta(told, mu) <= 1e-5
    assert exact_delta(0.8 * told, mu) > 1e-5


@pytest.mark.slow
def test_epsilon_grows_with_rounds_and_falls_with_noise_and_with_fewer_clients_drawn() -> None:
    assert epsilon(2.0, 1e-5, 10, 10, 10, True) < epsilon(2.0, 1e-5, 20, 10, 10, True)
    assert epsilon(4.0, 1e-5, 10, 10, 10, True) < epsilon(2.0, 1e-5, 10, 10, 10, True)
    few, all_known = (epsilon(4.0, 1e-5, 10, 10, 1000, amplified) for amplified in (True, False))
    assert few < all_known == epsilon(4.0, 1e-5, 10, 10, 10, True)


@pytest.mark.slow
@pytest.mark.parametrize(("z", "drawn", "clients"), [(1.0, 10, 1000), (2.0, 50, 100), (4.0, 3, 10)])
def test_epsilon_of_drawn_clients_is_for_one_client_in_the_place_of_another(z: float, drawn: int, clients: int) -> None:
    """One round against the exact bound (Balle, Barthe and Gaboardi, 2018, Theorem 9): drawn without replacement, and
    the sum moves by up to 2 C."""
    q, told = drawn / clients, epsilon(z, 1e-5, 1, drawn, clients, True)

    def exact(eps: float) -> float:
        return q * exact_delta(math.log1p(math.expm1(eps) / q), 2 / z)

    assert exact(told) <= 1e-5
    assert exact(0.3 * told) > 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("at", ["server", "node"])
def test_metrics_and_summary_tell_what_is_spent(tmp_path: Path, at: str) -> None:
    result = run(
        "fedadam", out=tmp_path / "run", progress=False, privacy_clip=1.0, privacy_noise=2.0, privacy_at=at, **TASK
    )
    spent = [line["epsilon"] for line in result.history]
    assert spent == [epsilon(2.0, 1e-5, rounds, 4, 4, True) for rounds in (1, 2)]
    told = read_json(result.folder / "summary.json")["privacy"]
    assert (told["epsilon"], told["delta"]) == (spent[-1], 1e-5)
    assert ("single updates" in told["covers"]) == (at == "node")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"privacy_noise": 1.0}, "such as privacy_clip"),
        ({"privacy_clip": 1.0}, "add privacy_noise"),
        ({"privacy_clip": 1.0, "privacy_noise": 1.0, "weighting": "samples"}, "weighting = uniform"),
        ({"privacy_clip": 1.0, "privacy_noise": 1.0, "method": "scaffold"}, "'scaffold'"),
        ({"privacy_clip": 1.0, "privacy_noise": 1.0, "method": "fedrane"}, "'gne'"),
        ({"privacy_clip": 1.0, "privacy_noise": 1.0, "method": "feddyn"}, "'feddyn'"),
        ({"privacy_clip": 1.0, "privacy_noise": 1.0, "method": "spherefed"}, "'ffc'"),
        ({"privacy_clip": 1.0, "privacy_noise": 1.0, "model": "resnet18", "data": "digits"}, "buffers = private"),
        ({"privacy_clip": 1.0, "privacy_noise": 1.0, "method": "central"}, "'central'"),
        ({"privacy_clip": 0.0, "privacy_noise": 1.0}, "privacy_clip = 0"),
        ({"privacy_clip": 1.0, "privacy_noise": -1.0}, "privacy_noise = -1"),
    ],
)
def test_what_would_protect_nobody_is_refused(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        job_of(tmp_path, **settings)
