"""FedNova against a plain loop, its limit, and the weight of local steps against real gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from fedframe.core.client_context import ClientContext
from fedframe.core.engine import Engine
from fedframe.core.job import Job
from fedframe.core.message import Message
from fedframe.core.method import combine
from fedframe.core.optimizers import normalised_steps
from fedframe.core.part import Part
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.methods.parts import DEFAULTS
from fedframe.methods.parts.fednova import REPORTED, FedNova
from tests.helpers import blobs, make_job, nothing
from tests.methods.toy import trained


@dataclass(frozen=True)
class Pull(Part):
    """A part that says how strongly it pulls, and does not."""

    name: ClassVar[str] = "pull"

    def begin(self, context: ClientContext) -> None:
        context.pull = 0.5


def job_of(folder: Path, *parts: Part, uneven: bool = True, **changes: Any) -> Job:
    data = blobs(clients=3)
    if uneven:
        data["user_train"] = (torch.arange(72) ** 2 // 1728).numpy()
    job = make_job(folder, data, **{"lr": 0.05, "epochs": 2, **changes})
    method = combine("nova", list(parts), [default() for default in DEFAULTS])
    return Job(job.settings, method, job.federation, job.template, folder)


@pytest.mark.parametrize("steps", [1, 2, 7, 100])
def test_gradient_mass_has_the_papers_closed_forms(steps: int) -> None:
    assert normalised_steps(steps) == steps
    m = 0.9
    momentum = (steps - m * (1 - m**steps) / (1 - m)) / (1 - m)
    assert normalised_steps(steps, m) == pytest.approx(momentum, rel=1e-12)
    pull = 0.05
    assert normalised_steps(steps, pull=pull) == pytest.approx((1 - (1 - pull) ** steps) / pull, rel=1e-12)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.5, 0.9])
@pytest.mark.parametrize("mu", [0.0, 0.3])
def test_gradient_mass_is_the_sum_of_the_weights_of_the_gradients(momentum: float, nesterov: bool, mu: float) -> None:
    steps, lr = 6, 0.1
    gradients = torch.zeros(steps, dtype=torch.float64, requires_grad=True)
    weight = start = torch.zeros((), dtype=torch.float64)
    velocity = torch.zeros((), dtype=torch.float64)
    for gradient in gradients:
        pulled = gradient + mu * (weight - start)
        velocity = momentum * velocity + pulled
        weight = weight - lr * (pulled + momentum * velocity if nesterov else velocity)
    (a,) = torch.autograd.grad(-weight / lr, gradients)
    assert bool((a > 0).all())
    assert normalised_steps(steps, momentum, nesterov, lr * mu) == pytest.approx(float(a.sum()), rel=1e-12)


CASES: list[tuple[list[Part], dict[str, Any]]] = [
    ([], {}),
    ([], {"momentum": 0.9}),
    ([], {"momentum": 0.9, "nesterov": True, "weighting": "uniform"}),
    ([Pull()], {"momentum": 0.5}),
]


@pytest.mark.parametrize(("more", "changes"), CASES)
def test_fednova_equals_a_plain_loop_with_different_steps(
    tmp_path: Path, more: list[Part], changes: dict[str, Any]
) -> None:
    job = job_of(tmp_path, FedNova(), *more, **changes)
    engine = InlineEngine(job)
    server = Server(job, engine, nothing)
    for round in (1, 2):
        replies = list(engine.run(server.build_request("train", round), server.select_clients(round)))
        assert len({reply.numbers["steps"] for reply in replies}) > 1
        uniform = changes.get("weighting") == "uniform"
        weights = [1.0 if uniform else float(reply.numbers["samples"]) for reply in replies]
        shares = [weight / sum(weights) for weight in weights]
        norms = []
        for reply in replies:
            way = velocity = 0.0
            for _ in range(int(reply.numbers["steps"])):
                gradient = 1 - 0.05 * (0.5 if more else 0) * way
                velocity = changes.get("momentum", 0.0) * velocity + gradient
                way += gradient + changes["momentum"] * velocity if changes.get("nesterov") else velocity
            norms.append(way)
        tau = sum(share * norm for share, norm in zip(shares, norms, strict=True))
        expected = server.model.double()
        for share, norm, reply in zip(shares, norms, replies, strict=True):
            assert reply.numbers[REPORTED] == pytest.approx(norm, rel=1e-12)
            expected = expected + tau * share * reply.tensors["update"].double() / norm
        server.run_round(round, nothing)
        torch.testing.assert_close(server.model.double(), expected, rtol=1e-6, atol=1e-7)
        assert server.figures["fednova/tau_eff"] == pytest.approx(tau)


@pytest.mark.parametrize(
    "changes",
    [
        {"uneven": False},
        {"steps": 5, "momentum": 0.9},
        {"steps": 7, "weighting": "uniform"},
        {"steps": 3, "momentum": 0.7, "nesterov": True},
    ],
)
def test_equal_steps_are_fedavg_bit_for_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    ours = trained(job_of(tmp_path, FedNova(), **changes), 3)
    assert torch.equal(ours.model, trained(job_of(tmp_path, **changes), 3).model)


def test_different_steps_are_not_fedavg(tmp_path: Path) -> None:
    assert not torch.equal(trained(job_of(tmp_path, FedNova()), 3).model, trained(job_of(tmp_path), 3).model)


class Meddler(Engine):
    """An engine whose first client reports nonsense."""

    def __init__(self, job: Job, value: float | str | None) -> None:
        self.engine, self.value = InlineEngine(job), value

    def run(self, request: Message, units: Sequence[int]) -> Iterator[Message]:
        for reply in self.engine.run(request, units):
            numbers = dict(reply.numbers)
            if reply.unit == 0:
                del numbers[REPORTED]
                if self.value is not None:
                    numbers[REPORTED] = self.value
            yield replace(reply, numbers=numbers)


@pytest.mark.parametrize("value", [None, 0.0, -1.0, 1e-9, float("nan"), float("inf"), "many"])
def test_client_that_does_not_say_how_far_it_went_is_left_out(tmp_path: Path, value: float | str | None) -> None:
    job = job_of(tmp_path, FedNova())
    notes: list[str] = []
    server = Server(job, Meddler(job, value), notes.append)
    server.run_round(1, nothing)
    assert len(notes) == 1
    said = "client 0 was left out" if value in (0.0, -1.0, 1e-9) else f"client 0 was refused: {REPORTED} is {value!r}"
    assert said in notes[0]
    engine = InlineEngine(job)
    good = Server(job, engine, nothing)
    expected = good.model.double()
    replies = [r for r in engine.run(good.build_request("train", 1), good.select_clients(1)) if r.unit != 0]
    weights = [float(reply.numbers["samples"]) for reply in replies]
    norms = [float(reply.numbers[REPORTED]) for reply in replies]
    tau = sum(w * a for w, a in zip(weights, norms, strict=True)) / sum(weights)
    for weight, norm, reply in zip(weights, norms, replies, strict=True):
        expected = expected + tau * weight / sum(weights) * reply.tensors["update"].double() / norm
    torch.testing.assert_close(server.model.double(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("value", [1e3, 1e12])
def test_a_client_that_claims_a_million_steps_does_not_own_the_model(tmp_path: Path, value: float) -> None:
    """tau_eff scales everybody's step: unbounded, one number would have moved the model as far as it likes."""
    notes: list[str] = []
    job = job_of(tmp_path, FedNova(), uneven=False)
    server = Server(job, Meddler(job, value), notes.append)
    before = server.model.clone()
    server.run_round(1, nothing)
    assert "counts as" in notes[0]
    honest = Server(job, InlineEngine(job), nothing)
    honest.run_round(1, nothing)
    assert float((server.model - before).norm()) < 3 * float((honest.model - before).norm())
