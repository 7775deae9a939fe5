"""APPLE and FedMTL: relation terms that carry a gradient, against autograd and plain loops in float64."""

from __future__ import annotations

import copy
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

import fedframe
from fedframe.core.job import Job
from fedframe.core.part import Part
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.engines.worker_pool import WorkerEngine
from fedframe.errors import SettingError
from fedframe.methods.parts.alone import Local
from fedframe.methods.parts.apple import Apple
from fedframe.methods.parts.fedmtl import FedMTL, relations
from fedframe.methods.recipes import make_method
from tests.helpers import nothing
from tests.methods.plain import batches, plain_model
from tests.methods.toy import job_of, trained

Weights = dict[str, Tensor]
NORMED = "tests.models.normed:normed"


def plain_weights(job: Job) -> Weights:
    return {name: p.detach().clone() for name, p in plain_model(job).named_parameters()}


def plain_names(job: Job, flat: Tensor) -> Weights:
    """A flat vector's weights by the plain model's names."""
    views = job.roles.layout.trainable_views(flat[: job.roles.layout.trainable])
    return {n.replace("backbone.", "0.").replace("head.", "1."): t.double() for n, t in views.items()}


def close(found: Weights, expected: Weights) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=3e-5, rtol=1e-4)


# -- APPLE -------------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_apple_equals_a_plain_loop_whose_gradients_autograd_finds(tmp_path: Path, momentum: float) -> None:
    """The mixture is a function of w_k and p_k; torch differentiates through it."""
    part = Apple(mu=0.5, p_rate=0.3, schedule="cosine", common_share=1.0)
    job = job_of(tmp_path, part, epochs=2, momentum=momentum, rounds=4)
    server = trained(job, 3)
    net = plain_model(job)
    sizes = torch.tensor([float(len(job.federation.train[k])) for k in range(3)], dtype=torch.float64)
    p0 = sizes / sizes.sum()
    cores, ps = [plain_weights(job) for _ in range(3)], [p0.clone() for _ in range(3)]
    for round in (1, 2, 3):
        start = copy.deepcopy(cores)
        weight = (1 + math.cos(math.pi * (round - 1) / 4)) / 2
        for k in range(3):
            core = {name: value.clone().requires_grad_() for name, value in start[k].items()}
            p = ps[k].clone().requires_grad_()
            groups: list[dict[str, Any]] = [{"params": list(core.values())}, {"params": [p], "lr": 0.3 * 0.1}]
            optimizer = torch.optim.SGD(groups, lr=0.1, momentum=momentum)
            for x, y in batches(job, round, k):
                rows = [core if j == k else start[j] for j in range(3)]
                mixed = {name: sum(p[j] * rows[j][name] for j in range(3)) for name in core}
                loss = F.cross_entropy(functional_call(net, mixed, (x,)), y)  # type: ignore[arg-type]
                optimizer.zero_grad()
                (loss + weight * 0.5 / 2 * ((p - p0) ** 2).sum()).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            cores[k], ps[k] = {name: value.detach() for name, value in core.items()}, p.detach()
    for k in range(3):
        close(plain_names(job, server.state["apple/models"][k]), cores[k])
        found = job.store.load(k, before=4)["apple/p"]
        torch.testing.assert_close(found.double(), ps[k], atol=3e-5, rtol=1e-4)
        assert not torch.allclose(ps[k], p0)


def test_relation_vector_moves_by_the_gradient_of_two_scalar_models(tmp_path: Path) -> None:
    """By hand: the slope along p_j is <g, w_j>, that of the own core model is p_kk g."""
    part = Apple(mu=0.0, p_rate=1.0)
    job = job_of(tmp_path, part, steps=1, batch=1000)
    server = Server(job, InlineEngine(job), nothing)
    server.state["apple/models"] = torch.stack([server.model, 2 * server.model, -server.model])
    before = server.state["apple/models"].double()
    p0 = server.state["apple/samples"].double() / server.state["apple/samples"].sum()
    net = plain_model(job)
    net.load_state_dict(plain_names(job, (p0 @ before).float()))
    ((x, y),) = batches(job, 1, 1)
    F.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
    server.run_round(1, nothing)
    gradient = {name: p.grad for name, p in net.named_parameters()}
    slope = torch.stack(
        [sum((gradient[n] * w).sum() for n, w in plain_names(job, row).items()) for row in before]  # type: ignore
    )
    torch.testing.assert_close(job.store.load(1, before=2)["apple/p"].double(), p0 - 0.1 * slope, atol=1e-5, rtol=1e-4)
    moved = plain_names(job, server.state["apple/models"][1] - before[1].float())
    for name, value in gradient.items():
        assert value is not None
        torch.testing.assert_close(moved[name], -0.1 * p0[1] * value, atol=1e-5, rtol=1e-3)


def test_schedule_goes_from_one_to_nothing() -> None:
    for schedule in ("cosine", "exponential"):
        part = Apple(schedule=schedule, common_share=0.5)
        weights = [part.weight(round, 20) for round in range(1, 21)]
        assert weights[0] == 1.0
        assert weights[10:] == [0.0] * 10
        assert all(a > b for a, b in itertools.pairwise(weights[:11]))
    assert Apple(common_share=0.0).weight(1, 20) == 0.0
    assert Apple(schedule="exponential", common_share=1.0).weight(11, 20) == pytest.approx(1e-3**0.5)


def test_strong_pull_keeps_the_relations_where_they_began(tmp_path: Path) -> None:
    job = job_of(tmp_path, Apple(mu=3.0, p_rate=1.0, schedule="cosine", common_share=1.0), rounds=1000)
    free = job_of(tmp_path / "free", Apple(mu=0.0, p_rate=1.0), rounds=1000)
    trained(job, 2)
    trained(free, 2)
    p0 = torch.tensor([31.0, 13.0, 10.0]) / 54
    held, loose = (float((j.store.load(0, before=3)["apple/p"] - p0).norm()) for j in (job, free))
    assert held < 0.7 * loose


def test_statistics_of_batch_norm_are_the_clients_own(tmp_path: Path) -> None:
    job = job_of(tmp_path, Apple(), model=NORMED, epochs=2)
    server = trained(job, 2)
    runtime = server.engine.runtime  # type: ignore[attr-defined]
    runtime.load_personal(runtime.begin(server.build_request("own", 3), 1))
    trainable = job.roles.layout.trainable
    assert torch.equal(runtime.flat[trainable:], server.state["apple/models"][1, trainable:])
    assert not torch.equal(runtime.flat[trainable:], server.state["apple/models"][0, trainable:])
    assert bool((job.roles.layout.views(runtime.flat)["backbone.2.running_var"] > 0).all())


# -- FedMTL ------------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_fedmtl_equals_a_plain_loop_with_the_trace_as_penalty(tmp_path: Path) -> None:
    """Torch differentiates lambda/2 Tr(W Omega W') with respect to the client's own column."""
    job = job_of(tmp_path, FedMTL(lam=0.05, ridge=0.1), epochs=2, momentum=0.5)
    server = trained(job, 3)
    net = plain_model(job)
    models, omega = [plain_weights(job) for _ in range(3)], 3 * torch.eye(3, dtype=torch.float64)
    for round in (1, 2, 3):
        start = copy.deepcopy(models)
        for k in range(3):
            own = {name: value.clone().requires_grad_() for name, value in start[k].items()}
            optimizer = torch.optim.SGD(list(own.values()), lr=0.1, momentum=0.5)
            for x, y in batches(job, round, k):
                w = torch.stack(
                    [torch.cat([v.flatten() for v in (own if j == k else start[j]).values()]) for j in range(3)]
                )
                term = 0.05 / 2 * torch.trace(w.T @ omega @ w)
                optimizer.zero_grad()
                (F.cross_entropy(functional_call(net, own, (x,)), y) + term).backward()  # type: ignore
                optimizer.step()
            models[k] = {name: value.detach() for name, value in own.items()}
        w = torch.stack([torch.cat([value.flatten() for value in model.values()]) for model in models])
        gram = w @ w.T
        values, vectors = torch.linalg.eigh(gram + 0.1 * gram.diagonal().mean() * torch.eye(3))
        root = vectors @ values.sqrt().diag() @ vectors.T
        omega = torch.linalg.inv(root / root.trace())
    torch.testing.assert_close(server.state["fedmtl/omega"].double(), omega, atol=1e-3, rtol=1e-3)
    for k in range(3):
        close(plain_names(job, server.state["fedmtl/models"][k]), models[k])


def test_fedmtl_without_the_term_is_local(tmp_path: Path) -> None:
    job, alone = job_of(tmp_path / "a", FedMTL(lam=0.0)), job_of(tmp_path / "b", Local())
    server = trained(job, 3)
    trained(alone, 3)
    for k in range(3):
        memory = alone.store.load(k, before=4)
        for name, value in job.roles.layout.views(server.state["fedmtl/models"][k]).items():
            torch.testing.assert_close(value, memory[f"model/{name}"], atol=1e-5, rtol=1e-4)


def test_relations_are_the_minimiser_over_matrices_of_trace_one() -> None:
    """Tr(Sigma^-1 W'W) is at least as large for any other Sigma; two clients, by hand."""
    models = torch.tensor([[3.0, 0.0, 0.0], [0.0, 4.0, 0.0]], dtype=torch.float64)
    omega = relations(models, 1e-12)
    torch.testing.assert_close(
        omega, torch.diag(torch.tensor([7 / 3, 7 / 4], dtype=torch.float64)), atol=1e-5, rtol=1e-5
    )
    draw = torch.Generator().manual_seed(0)
    models = torch.randn(4, 9, generator=draw, dtype=torch.float64)
    best = torch.trace(relations(models, 1e-12) @ models @ models.T)
    for _ in range(50):
        other = torch.randn(4, 4, generator=draw, dtype=torch.float64)
        sigma = other @ other.T + 1e-3 * torch.eye(4)
        value = torch.trace(torch.linalg.inv(sigma / sigma.trace()) @ models @ models.T)
        assert float(value) >= float(best)


@pytest.mark.parametrize("models", [torch.ones(5, 7), torch.zeros(5, 7)])
def test_models_that_are_alike_have_bounded_relations(models: Tensor) -> None:
    omega = relations(models, 0.01)
    assert bool(torch.isfinite(omega).all())
    assert float(torch.linalg.eigvalsh(omega).max()) <= (5 / 0.01) ** 0.5 + 5 + 1e-6


# -- both --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("part", [Apple(), FedMTL(lam=0.01)])
def test_all_models_are_counted_in_the_bytes_of_a_round(tmp_path: Path, part: Part) -> None:
    job = job_of(tmp_path, part, participation=0.67)
    record = Server(job, InlineEngine(job), nothing).run_round(1, nothing)
    model = 4 * job.roles.layout.size
    assert record.clients == 2
    assert record.bytes_up == 2 * model
    assert 2 * 4 * model <= record.bytes_down <= 2 * 4 * model + 200  # three models, their mean, a few numbers


@pytest.mark.parametrize("part", [Apple(), FedMTL(lam=0.01)])
def test_models_of_clients_that_are_not_drawn_stay(tmp_path: Path, part: Part) -> None:
    job = job_of(tmp_path, part, participation=0.34)
    server = Server(job, InlineEngine(job), nothing)
    start = server.model.clone()
    (chosen,) = server.select_clients(1)
    server.run_round(1, nothing)
    models = server.state[f"{part.name}/models"]
    assert [bool(torch.equal(row, start)) for row in models] == [client != chosen for client in range(3)]
    torch.testing.assert_close(server.model, models[chosen])  # the mean of those that were trained
    server.round = 1
    assert server.conclude(nothing).personal_count == 3


@pytest.mark.parametrize("part", [Apple(), FedMTL(lam=0.01)])
def test_client_that_was_in_no_round_learns_a_model_only_for_itself(tmp_path: Path, part: Part) -> None:
    """Between rounds it has what the others' models give it; in the end it trains that on its own data."""
    job = job_of(tmp_path, part, participation=0.34)
    server = trained(job, 1)
    (chosen,) = server.select_clients(1)
    absent = (chosen + 1) % 3
    runtime = server.engine.runtime  # type: ignore[attr-defined]
    found = []
    for kind in ("own", "personalise"):
        runtime.load_personal(runtime.begin(server.build_request(kind, 2), absent))
        found.append(runtime.flat.clone())
    models, samples = server.state[f"{part.name}/models"], server.state[f"{part.name}/samples"]
    expected = server.model if part.name == "fedmtl" else samples / samples.sum() @ models
    torch.testing.assert_close(found[0], expected)
    assert float((found[1] - found[0]).norm()) > 1e-3


def test_relations_are_those_of_weights_not_of_statistics(tmp_path: Path) -> None:
    job = job_of(tmp_path, FedMTL(lam=0.01), model=NORMED)
    server = trained(job, 2)
    models = server.state["fedmtl/models"]
    expected = relations(models[:, : job.roles.layout.trainable], FedMTL().ridge)
    torch.testing.assert_close(server.state["fedmtl/omega"], expected.float())
    assert not torch.allclose(expected, relations(models, FedMTL().ridge), rtol=1e-3)
    runtime = server.engine.runtime  # type: ignore[attr-defined]
    runtime.load_personal(runtime.begin(server.build_request("own", 3), 1))
    assert torch.equal(runtime.flat, models[1])  # statistics are the client's own


@pytest.mark.slow
@pytest.mark.parametrize("part", [Apple(), FedMTL(lam=0.01)])
def test_large_orders_reach_workers_with_the_same_bits(tmp_path: Path, part: Part) -> None:
    """More models than shared memory has room for go through the pipe."""
    found = []
    for workers in (1, 2):
        job = job_of(tmp_path / str(workers), part, model="mlp:300x300", steps=2)
        engine = InlineEngine(job) if workers == 1 else WorkerEngine(job, workers, nothing)
        server = Server(job, engine, nothing)
        if isinstance(engine, WorkerEngine):
            engine._inbox.capacity = 4096
        for round in (1, 2):
            server.run_round(round, nothing)
            server.round = round
        found.append(server.tensors())
        engine.close()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["apple", "fedmtl"])
def test_what_would_not_fit_is_refused_with_the_number(tmp_path: Path, name: str) -> None:
    small = {name: {"most_gb": 0.002}}
    with pytest.raises(
        SettingError,
        match=rf"and their mean to each of them: 0.00464 GB, more than {name}.most_gb = 0.002; use at most 8 clients",
    ):
        fedframe.run(name, clients=20, out=tmp_path / "run", progress=False, set=small)
    assert not (tmp_path / "run").exists()
    run = fedframe.run(name, clients=8, rounds=1, out=tmp_path / "run", progress=False, personal=False, set=small)
    assert 0.0015e9 < run.history[0]["bytes_down"] / 8 < 0.0021e9  # what was said is what is sent, with some names


@pytest.mark.parametrize("method", ["apple+scaffold", "fedmtl+ffc", "apple+spherefed"])
def test_what_is_about_a_shared_model_is_refused(method: str) -> None:
    with pytest.raises(SettingError, match="every client has a model of its own"):
        make_method(method, {})


def test_two_rules_for_one_merge_are_refused() -> None:
    with pytest.raises(SettingError, match="both claim the merge slot"):
        make_method("apple+fedadam", {})
