"""The four server optimisers against plain loops in float64, their limit, and resume."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from fedframe.core.job import Job
from fedframe.core.method import combine
from fedframe.core.part import Part
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import SettingError
from fedframe.methods.parts import DEFAULTS
from fedframe.methods.parts.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi, ServerOptimizer
from fedframe.methods.parts.mean import Mean
from tests.helpers import equal_states, make_job, nothing

ALL: list[ServerOptimizer] = [FedAvgM(0.7, 0.8), FedAdagrad(0.05, 0.3, 1e-2), FedAdam(), FedYogi()]


def job_of(folder: Path, *parts: Part) -> Job:
    job = make_job(folder, lr=0.05, momentum=0.5)
    method = combine("optimised", list(parts), [default() for default in DEFAULTS])
    return Job(job.settings, method, job.federation, job.template, folder)


def trained(job: Job, first: int = 1, last: int = 4, server: Server | None = None) -> Server:
    server = server or Server(job, InlineEngine(job), nothing)
    for round in range(first, last + 1):
        server.run_round(round, nothing)
        server.round = round
    return server


def plain(part: ServerOptimizer, means: list[list[float]]) -> list[float]:
    """Algorithm 2 as it is printed, weight by weight: the steps of all rounds added up."""
    moved = []
    for i in range(len(means[0])):
        way, m = 0.0, 0.0
        v = 0.0 if isinstance(part, FedAvgM) else part.tau**2  # type: ignore[attr-defined]
        for mean in means:
            d = mean[i]
            if isinstance(part, FedAvgM):
                m = part.momentum * m + d
                way += part.lr * m
                continue
            assert isinstance(part, (FedAdagrad, FedAdam, FedYogi))
            m = part.beta1 * m + (1 - part.beta1) * d
            if isinstance(part, FedAdagrad):
                v = v + d**2
            elif isinstance(part, FedAdam):
                v = part.beta2 * v + (1 - part.beta2) * d**2
            else:
                sign = (v > d**2) - (v < d**2)
                v = v - (1 - part.beta2) * d**2 * sign
            way += part.lr * m / (math.sqrt(v) + part.tau)
        moved.append(way)
    return moved


@pytest.mark.parametrize("part", ALL, ids=lambda part: part.name)
def test_rule_equals_a_plain_loop(tmp_path: Path, part: ServerOptimizer) -> None:
    server = Server(job_of(tmp_path, part), InlineEngine(job_of(tmp_path)), nothing)
    generator = torch.Generator().manual_seed(0)
    size = server.layout.trainable
    scale = torch.logspace(-5, 0, size, dtype=torch.float64)  # squares on both sides of tau^2
    means = [scale * torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(5)]
    moved = sum((part.move(mean, server.state) for mean in means), torch.zeros(size, dtype=torch.float64))
    expected = torch.tensor(plain(part, [mean.tolist() for mean in means]), dtype=torch.float64)
    torch.testing.assert_close(moved, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("part", ALL, ids=lambda part: part.name)
def test_run_equals_a_plain_loop_over_rounds(tmp_path: Path, part: ServerOptimizer) -> None:
    job = job_of(tmp_path, part)
    engine = InlineEngine(job)
    server = Server(job, engine, nothing)
    start = server.model.double()
    means: list[list[float]] = []
    for round in (1, 2, 3):
        replies = list(engine.run(server.build_request("train", round), server.select_clients(round)))
        weights = [float(reply.numbers["samples"]) for reply in replies]
        total = sum(w * r.tensors["update"].double() for w, r in zip(weights, replies, strict=True))
        assert isinstance(total, torch.Tensor)
        means.append((total / sum(weights)).tolist())
        server.run_round(round, nothing)
    expected = start + torch.tensor(plain(part, means), dtype=torch.float64)
    torch.testing.assert_close(server.model.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_fedavgm_without_momentum_is_fedavg(tmp_path: Path) -> None:
    ours = trained(job_of(tmp_path, FedAvgM(lr=1.0, momentum=0.0)))
    assert torch.equal(ours.model, trained(job_of(tmp_path)).model)


@pytest.mark.slow
@pytest.mark.parametrize("part", ALL, ids=lambda part: part.name)
def test_moments_survive_a_resume(tmp_path: Path, part: ServerOptimizer) -> None:
    job = job_of(tmp_path, part)
    whole, half = trained(job), trained(job, last=2)
    kept = {name: tensor.clone() for name, tensor in half.tensors().items()}
    assert any(name.startswith(f"state/{part.name}/") for name in kept)
    resumed = Server(job, InlineEngine(job), nothing)
    resumed.restore(kept, 2)
    trained(job, 3, 4, resumed)
    assert equal_states(resumed.tensors(), whole.tensors())
    forgetful = Server(job, InlineEngine(job), nothing)
    forgetful.model, forgetful.round = kept["model"], 2
    assert not torch.equal(trained(job, 3, 4, forgetful).model, whole.model)


@pytest.mark.slow
@pytest.mark.parametrize("part", [FedAvgM(), FedAdagrad(), FedAdam(), FedYogi()], ids=lambda part: part.name)
def test_defaults_learn(tmp_path: Path, part: ServerOptimizer) -> None:
    job = job_of(tmp_path, part)
    server = Server(job, InlineEngine(job), nothing)
    losses = [server.run_round(round, nothing).loss for round in range(1, 41)]
    assert losses[-1] < 0.7 * losses[0]  # FedAdagrad's steps shrink, so it is slow on a toy net; the others reach 1e-3


def test_two_merge_rules_are_refused_by_name() -> None:
    with pytest.raises(SettingError, match=r"'fedadam' and 'mean' both claim the merge slot"):
        combine("x", [FedAdam(), Mean()], [])
