"""The bargain against scipy and its own equation, and the part in a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedframe.core.engine import Engine
from fedframe.core.job import Job
from fedframe.core.kept_updates import FileVector, KeptUpdates
from fedframe.core.message import Message
from fedframe.core.method import combine
from fedframe.core.part import Part
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.methods.parts import DEFAULTS, nash
from fedframe.methods.parts.nash import Bargain, Nash, bargain, combination, gram_matrix
from tests.helpers import make_job, nothing


# -- the bargain -------------------------------------------------------------------------------------------------------
def draw(dim: int, clients: int, seed: int = 0, shared: float = 0.3) -> Tensor:
    """Updates as columns: independent noise and something in common."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(dim, clients, generator=generator, dtype=torch.float64)
    return noise + shared * torch.randn(dim, 1, generator=generator, dtype=torch.float64)


def residual(gram: Tensor, found: Bargain, weights: Tensor | None = None) -> float:
    """How far p is from solving its equation, without any scaling."""
    ridged = gram + found.ridge * torch.diag(gram.diagonal())
    live = gram.diagonal() > 0
    w = torch.ones_like(found.p) if weights is None else weights
    return float(((ridged @ found.p - w / found.p) * found.p / w)[live].abs().max())


def opposed(dim: int, clients: int, agreement: float) -> Tensor:
    """Pairs of opposite updates with a small part in common: nearly conflicting, of very different lengths."""
    half = draw(dim, clients // 2, 1, shared=0.0)
    both = torch.cat([half, -half], 1) + agreement * draw(dim, 1, 2, shared=0.0)
    return both * torch.logspace(-4, 4, clients, dtype=torch.float64)


HARD = {
    "one": draw(30, 1),
    "independent": draw(1000, 200, shared=0.0),
    "as many as dimensions": draw(200, 200, shared=0.0),
    "scales": draw(500, 200) * torch.logspace(-4, 4, 200, dtype=torch.float64),
    "duplicates": draw(500, 20).repeat(1, 10),
    "all equal": draw(500, 1).repeat(1, 200),
    "singular": draw(5, 200) + 3 * torch.eye(5, 1, dtype=torch.float64),
    # Rounding alone leaves a residual of u p'|M|p / w: 1e-9 here. With 1e-3 in common it would be the 1e-8 that counts
    # as solved, and the last bits of M would decide.
    "nearly conflicting": torch.cat([draw(500, 1), -2 * draw(500, 1) + 3e-3 * draw(500, 1, 5)], 1),
    "many nearly conflicting": opposed(1000, 200, 1e-3),
    "a zero update": torch.cat([draw(100, 4), torch.zeros(100, 1, dtype=torch.float64)], 1),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("updates", HARD.values(), ids=HARD.keys())
def test_equation_is_solved_and_everyone_gains(updates: Tensor, weighted: bool) -> None:
    gram = updates.T @ updates
    weights = torch.linspace(0.3, 3, len(gram), dtype=torch.float64) if weighted else None
    found = bargain(gram, weights)
    assert found.agreed
    assert found.ridge == 0
    assert max(found.residual, residual(gram, found, weights)) < 1e-8
    assert found.iterations < 40
    gains = updates.T @ (updates @ found.p)
    live = gram.diagonal() > 0
    assert bool((gains[live] > 0).all())
    assert bool((found.p[~live] == 0).all())


CANCEL = {
    "opposite": torch.cat([draw(50, 1), -2 * draw(50, 1)], 1),
    "too near to opposite for double precision": torch.cat([draw(50, 1), -2 * draw(50, 1) + 1e-7 * draw(50, 1, 5)], 1),
    "opposite among others": torch.cat([draw(500, 20), -3 * draw(500, 20)[:, :1]], 1),
    "all around": draw(5, 200, shared=0.0),
    "half as many dimensions": draw(90, 200, shared=0.0),
}


@pytest.mark.parametrize("updates", CANCEL.values(), ids=CANCEL.keys())
def test_updates_that_cancel_are_no_agreement_and_a_ridge_makes_them_solvable(updates: Tensor) -> None:
    gram = updates.T @ updates
    found = bargain(gram)
    assert not found.agreed
    assert found.ridge > 0
    assert max(found.residual, residual(gram, found)) < 1e-8
    assert bool((found.p > 0).all())


def test_nobody_has_a_say_when_all_updates_are_zero() -> None:
    found = bargain(torch.zeros(3, 3, dtype=torch.float64))
    assert found.agreed
    assert torch.equal(found.p, torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("dim", "clients"), [(40, 3), (40, 12), (12, 15)])
def test_solution_equals_that_of_a_general_optimiser(dim: int, clients: int, weighted: bool) -> None:
    optimize: Any = pytest.importorskip("scipy.optimize")
    updates = draw(dim, clients, 3, shared=1.0) / dim**0.5
    gram = (updates.T @ updates).numpy()
    weights = torch.linspace(0.1, 3, clients, dtype=torch.float64) if weighted else torch.ones(clients).double()
    w = weights.numpy()

    def value(logs: Any) -> float:
        p = torch.from_numpy(logs).exp().numpy()
        return float(0.5 * p @ gram @ p - w @ logs)

    def slope(logs: Any) -> Any:
        p = torch.from_numpy(logs).exp().numpy()
        return p * (gram @ p) - w

    start = torch.zeros(clients, dtype=torch.float64).numpy()
    theirs = optimize.minimize(value, start, jac=slope, method="BFGS", options={"gtol": 1e-9})
    ours = bargain(torch.from_numpy(gram), weights).p
    torch.testing.assert_close(ours, torch.from_numpy(theirs.x).exp(), rtol=1e-6, atol=0)
    assert value(ours.log().numpy()) <= theirs.fun + 1e-12


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(0, 10**6), st.floats(1e-4, 1e4), st.data())
def test_direction_is_the_same_when_one_client_sends_a_longer_update(
    clients: int, seed: int, factor: float, data: st.DataObject
) -> None:
    updates = draw(40, clients, seed)
    who = data.draw(st.integers(0, clients - 1))
    longer = updates.clone()
    longer[:, who] *= factor
    first, second = (g @ bargain(g.T @ g).p for g in (updates, longer))
    torch.testing.assert_close(first, second, rtol=1e-7, atol=1e-7)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(2, 12), st.integers(0, 10**6))
def test_order_of_the_clients_does_not_matter(clients: int, seed: int) -> None:
    updates = draw(40, clients, seed)
    order = torch.randperm(clients, generator=torch.Generator().manual_seed(seed))
    gram = updates.T @ updates
    torch.testing.assert_close(bargain(gram[order][:, order]).p, bargain(gram).p[order], rtol=1e-8, atol=0)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 10**6), st.floats(0, 2))
def test_any_updates_give_a_certified_bargain(dim: int, clients: int, seed: int, shared: float) -> None:
    updates = draw(dim, clients, seed, shared)
    gram = updates.T @ updates
    found = bargain(gram)
    assert max(found.residual, residual(gram, found)) < 1e-8
    if found.agreed:
        assert bool((updates.T @ (updates @ found.p) > 0).all())
        assert float((updates @ found.p).square().sum()) == pytest.approx(clients, rel=1e-6)  # the paper's radius


def test_blocks_of_columns_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = list(draw(101, 7).T.float())
    whole = torch.stack(updates).double()
    shares = torch.arange(7, dtype=torch.float64)
    monkeypatch.setattr(nash, "BLOCK", 70)
    torch.testing.assert_close(gram_matrix(updates), whole @ whole.T, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(combination(updates, shares), shares @ whole, rtol=1e-12, atol=1e-12)


# -- the part ----------------------------------------------------------------------------------------------------------
def job_of(folder: Path, *parts: Part, **changes: Any) -> Job:
    job = make_job(folder, lr=0.05, **changes)
    method = combine("bargained", list(parts), [default() for default in DEFAULTS])
    return Job(job.settings, method, job.federation, job.template, folder)


class Scripted(Engine):
    """An engine whose clients reply what the test says, with 1, 2, 3, ... samples."""

    def __init__(self, updates: list[Tensor]) -> None:
        self.updates = updates

    def run(self, request: Message, units: Sequence[int]) -> Iterator[Message]:
        for unit in range(len(self.updates)):
            numbers: dict[str, int | float | str] = {"samples": unit + 1, "loss": 1.0, "steps": 1}
            yield Message(request.kind, request.round, unit, {"update": self.updates[unit]}, numbers)


def step(job: Job, updates: list[Tensor]) -> tuple[Tensor, Server, list[str]]:
    """What one round with these updates does to the model, in float64."""
    notes: list[str] = []
    server = Server(job, Scripted(updates), notes.append)
    server.model = torch.zeros_like(server.model)
    server.run_round(1, nothing)
    return server.model.double(), server, notes


def columns(job: Job, clients: int, shared: float = 0.3) -> list[Tensor]:
    return list(draw(job.roles.layout.size, clients, shared=shared).T.float().contiguous())


@pytest.mark.parametrize("say", ["weights", "equal"])
def test_step_has_the_bargained_direction_and_the_chosen_length(tmp_path: Path, say: Any) -> None:
    job = job_of(tmp_path, Nash())
    updates = [(k + 1) ** 2 * update for k, update in enumerate(columns(job, 4))]
    g = torch.stack(updates, 1).double()
    p = bargain(g.T @ g, torch.tensor([0.4, 0.8, 1.2, 1.6], dtype=torch.float64) if say == "weights" else None).p
    mean = g @ torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    expected = {"fedavg_norm": g @ p * mean.norm() / (g @ p).norm(), "sum": g @ p / p.sum(), "radius": g @ p}
    for length, value in expected.items():
        found, server, notes = step(job_of(tmp_path, Nash(length, say)), updates)  # type: ignore[arg-type]
        torch.testing.assert_close(found, value, rtol=1e-5, atol=1e-6)
        assert notes == []
        assert server.figures["gne/agreed"] == 1
        assert server.figures["gne/residual"] < 1e-8
        assert server.figures["gne/norm_ratio"] == pytest.approx(float((g @ p / p.sum()).norm() / mean.norm()))
    assert float(expected["radius"].norm()) == pytest.approx(2)  # sqrt(clients), whatever the updates


@pytest.mark.parametrize("length", ["fedavg_norm", "sum"])
@pytest.mark.parametrize("clients", [1, 5])
def test_one_update_or_equal_ones_are_fedavg(tmp_path: Path, clients: int, length: Any) -> None:
    updates = columns(job_of(tmp_path), 1) * clients
    ours, usual = (step(job_of(tmp_path, *parts), updates)[0] for parts in ([Nash(length)], []))
    torch.testing.assert_close(ours, usual, rtol=1e-6, atol=0)


def test_no_agreement_is_said_once_and_counted(tmp_path: Path) -> None:
    job = job_of(tmp_path, Nash())
    updates = columns(job, 3)
    found, server, notes = step(job, [*updates, -0.5 * updates[0]])
    assert len(notes) == 1
    assert "no step helps all 4 clients" in notes[0]
    assert server.figures["gne/agreed"] == 0
    assert bool(found.isfinite().all())
    assert float(found.norm()) > 0
    server.run_round(2, nothing)
    assert len(notes) == 1
    assert float(server.state["gne/conflicts"]) == 2
    resumed = Server(job, Scripted([*updates, -0.5 * updates[0]]), notes.append)
    resumed.restore(server.tensors(), 2)
    resumed.run_round(3, nothing)
    assert len(notes) == 1


@pytest.mark.parametrize("length", ["fedavg_norm", "sum", "radius"])
def test_model_stays_where_the_updates_cancel_or_are_zero(tmp_path: Path, length: Any) -> None:
    job = job_of(tmp_path, Nash(length, say="equal"))
    update = columns(job, 1)[0]
    found, _, notes = step(job, [update, -2 * update])
    torch.testing.assert_close(found, torch.zeros_like(found), rtol=0, atol=1e-5)
    assert "the updates cancel and the model stays" in notes[0]
    found, server, notes = step(job, [torch.zeros_like(update)] * 2)
    assert torch.equal(found, torch.zeros_like(found))
    assert notes == []
    assert server.figures["gne/norm_ratio"] == 0


def test_weights_decide_where_opposite_updates_go(tmp_path: Path) -> None:
    job = job_of(tmp_path, Nash())
    update = columns(job, 1)[0]
    found, _, notes = step(job, [update, -2 * update])  # of 1 and 2 samples
    assert "no step helps all 2 clients" in notes[0]
    assert float(found @ update.double()) < 0


def test_replies_may_be_overwritten_after_they_are_taken(tmp_path: Path) -> None:
    class Lending(Scripted):
        def run(self, request: Message, units: Sequence[int]) -> Iterator[Message]:
            lent = torch.empty_like(self.updates[0])
            for reply in super().run(request, units):
                yield replace(reply, tensors={"update": lent.copy_(reply.tensors["update"])})

    job = job_of(tmp_path, Nash())
    expected = step(job, columns(job, 4))[0]
    server = Server(job, Lending(columns(job, 4)), nothing)
    server.model = torch.zeros_like(server.model)
    server.run_round(1, nothing)
    torch.testing.assert_close(server.model.double(), expected, rtol=0, atol=0)


@pytest.mark.slow
def test_bargaining_learns(tmp_path: Path) -> None:
    job = job_of(tmp_path, Nash())
    engine = InlineEngine(job)
    server = Server(job, engine, nothing)
    losses = [server.run_round(round, nothing).loss for round in range(1, 9)]
    engine.close()
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("most", [0, 3000, 1 << 30])
def test_updates_in_a_file_give_the_bits_of_updates_in_memory(most: int, tmp_path: Path) -> None:
    kept = KeptUpdates(tmp_path, most)
    updates = list(torch.randn(5, 400, generator=torch.Generator().manual_seed(0)))
    for update in updates:
        kept.add(update)
    assert [isinstance(each, FileVector) for each in kept.updates] == [4 * 400 * (n + 1) > most for n in range(5)]
    assert torch.equal(gram_matrix(kept.updates), gram_matrix(updates))
    shares = torch.tensor([0.1, 0.2, 0.3, -0.1, 0.5], dtype=torch.float64)
    assert torch.equal(combination(kept.updates, shares), combination(updates, shares))
    assert torch.equal(kept.updates[4][390:1000], updates[4][390:])
    assert not list(tmp_path.iterdir())  # the file has no name
