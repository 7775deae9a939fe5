"""Worker processes: same bits for any number of them, and what happens when one dies."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedframe.core.client_groups import groups_of
from fedframe.core.evaluation import score_shared
from fedframe.core.job import PIECE
from fedframe.core.message import Message
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.engines.shared_memory import Slab
from fedframe.engines.worker_pool import WorkerEngine, WorkerHandle
from fedframe.errors import RunError
from tests.helpers import blobs, images, make_job, nothing


class Deadly(nn.Module):
    """A net that kills its process in training, once for every file in a folder."""

    dim = 5

    def __init__(self, bullets: Path, count: int) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 5)
        self.bullets = bullets
        bullets.mkdir()
        for number in range(count):
            (bullets / str(number)).touch()

    def forward(self, x: Tensor) -> Tensor:
        for bullet in self.bullets.iterdir() if self.training else ():
            with contextlib.suppress(FileNotFoundError):  # the other worker took it
                bullet.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        result: Tensor = self.layer(x)
        return result


class Raising(nn.Module):
    """A net with a bug that shows in training only."""

    dim = 5

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise ValueError("the bug")
        return x


@pytest.mark.slow
@pytest.mark.parametrize("net", ["mlp:8", "resnet20"])
def test_one_two_and_three_workers_give_the_same_bits(tmp_path: Path, net: str) -> None:
    data = blobs(clients=7) if net.startswith("mlp") else images(count=70)
    job = make_job(tmp_path, data, net, partition="dirichlet:1", clients=5, min_client_size=2, epochs=1, lr=0.05)
    models = []
    for workers in (1, 2, 3):
        engine = InlineEngine(job) if workers == 1 else WorkerEngine(job, workers, nothing)
        server = Server(job, engine)
        for round in (1, 2):
            server.run_round(round, nothing)
        engine.close()
        models.append(server.model)
    assert torch.equal(models[0], models[1])
    assert torch.equal(models[0], models[2])


@pytest.mark.slow
def test_many_clients_of_short_work_travel_in_groups_and_the_bits_stay(tmp_path: Path) -> None:
    job = make_job(tmp_path, blobs(clients=26))
    models = []
    for engine in (InlineEngine(job), WorkerEngine(job, 2, nothing)):
        server = Server(job, engine)
        request = server.build_request("train", 1)
        if isinstance(engine, WorkerEngine):
            assert groups_of(job, request, range(26), 2) == [[2 * n, 2 * n + 1] for n in range(13)]
        seen = [reply.unit for reply in engine.run(request, range(26))]
        assert seen == [*range(26)]
        for round in (1, 2):
            server.run_round(round, nothing)
        engine.close()
        models.append(server.model)
    assert torch.equal(*models)


@pytest.mark.parametrize(
    ("settings", "workers", "size"),
    [
        ({}, 1, 4),
        ({}, 2, 2),
        ({}, 8, None),  # too few clients for more than one message per group to every worker
        ({"model": "mlp:600x600"}, 1, None),  # a large net
        ({"epochs": 100_000}, 1, None),  # long work
        ({"steps": 100_000}, 1, None),
        ({"vectorise": "auto"}, 2, 6),  # groups of the round, whatever the number of workers
    ],
)
def test_clients_travel_in_groups_where_their_work_is_short(
    settings: dict[str, Any], workers: int, size: int | None, tmp_path: Path
) -> None:
    job = make_job(tmp_path, blobs(clients=26), **settings)
    groups = groups_of(job, Message("train", 1), range(26), workers)
    assert (groups and len(groups[0])) == size
    assert groups is None or [client for group in groups for client in group] == [*range(26)]
    assert groups_of(job, Message("score", 1), range(26), workers) is None


@pytest.mark.slow
def test_replies_come_in_the_order_of_the_units(tmp_path: Path) -> None:
    job = make_job(tmp_path, blobs(clients=9))
    engine = WorkerEngine(job, 3, nothing)
    request = Server(job, engine).build_request("train", 1)
    units = [8, 0, 3, 7, 1, 2, 6, 5, 4]
    replies = [(reply.unit, reply.tensors["update"].clone()) for reply in engine.run(request, units)]
    engine.close()
    assert [unit for unit, _ in replies] == units
    inline = {reply.unit: reply.tensors["update"] for reply in InlineEngine(job).run(request, units)}
    assert all(torch.equal(update, inline[unit]) for unit, update in replies)


@pytest.mark.slow
def test_worker_that_dies_is_replaced_and_the_result_is_the_same(tmp_path: Path) -> None:
    job = make_job(tmp_path, None, Deadly(tmp_path / "bullets", 1))
    notes: list[str] = []
    engine = WorkerEngine(job, 2, notes.append)
    server = Server(job, engine)
    server.run_round(1, nothing)
    engine.close()
    assert len(notes) == 1
    assert "SIGKILL" in notes[0]
    assert "replaced" in notes[0]
    unharmed = Server(job, InlineEngine(job))
    unharmed.run_round(1, nothing)
    assert torch.equal(server.model, unharmed.model)


@pytest.mark.slow
def test_unit_that_kills_its_worker_twice_ends_the_run_with_a_clear_error(tmp_path: Path) -> None:
    job = make_job(tmp_path, None, Deadly(tmp_path / "bullets", 100))
    engine = WorkerEngine(job, 2, nothing)
    with pytest.raises(RunError, match=r"Twice, .*SIGKILL.*--workers.*All finished rounds are kept"):
        Server(job, engine).run_round(1, nothing)
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_error_in_the_users_code_names_round_stage_and_client(tmp_path: Path, workers: int) -> None:
    job = make_job(tmp_path, None, Raising())
    engine = InlineEngine(job) if workers == 1 else WorkerEngine(job, workers, nothing)
    with pytest.raises(RunError, match=r"Round 1, train, client \d: ValueError: the bug"):
        Server(job, engine).run_round(1, nothing)
    engine.close()


@pytest.mark.slow
def test_workers_start_after_the_parent_has_used_threads(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    try:
        big = torch.randn(600, 600, requires_grad=True)
        (big @ big).sum().backward()  # type: ignore[no-untyped-call]
        job = make_job(tmp_path)
        engine = WorkerEngine(job, 2, nothing)
        record = Server(job, engine).run_round(1, nothing)
        engine.close()
        assert record.clients == 4
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.slow
def test_message_that_does_not_fit_goes_through_the_pipe(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    engine = WorkerEngine(job, 2, nothing)
    server = Server(job, engine)
    request = server.build_request("train", 1)
    large = Message(request.kind, 1, -1, {**request.tensors, "large": torch.ones(2_000_000)}, request.numbers)
    assert engine._inbox.write(large.tensors) is None
    through_pipe = [reply.tensors["update"].clone() for reply in engine.run(large, [0, 1, 2])]
    engine.close()
    inline = [reply.tensors["update"] for reply in InlineEngine(job).run(request, [0, 1, 2])]
    assert all(torch.equal(a, b) for a, b in zip(through_pipe, inline, strict=True))


def test_slab_gives_back_what_was_written_and_says_when_it_is_full() -> None:
    slab = Slab(4096)
    tensors = {
        "a": torch.randn(3, 5),
        "b": torch.arange(7),
        "c": torch.tensor([True, False]),
        "d": torch.empty(0),
    }
    specs = slab.write(tensors)
    assert specs is not None
    back = slab.read(specs)
    assert all(torch.equal(back[name], tensors[name]) and back[name].dtype == tensors[name].dtype for name in tensors)
    assert slab.write({"big": torch.zeros(2000)}) is None


@pytest.mark.slow
def test_scores_of_a_test_set_in_many_pieces_are_those_of_one_process(tmp_path: Path) -> None:
    data = blobs(clients=6, each=900)  # the clients' own test data make several pieces
    data["x_test"], data["y_test"] = data["x_train"][:5000], data["y_train"][:5000]
    job = make_job(tmp_path, data, lr=0.001, epochs=1)
    assert len(job.test_rows("test")) > 2 * PIECE
    found = []
    for engine in (InlineEngine(job), WorkerEngine(job, 3, nothing)):
        server = Server(job, engine)
        found.append(score_shared(server, "local"))
        assert found[-1] == score_shared(server, "local-all")
        engine.close()
    assert found[0] == found[1]
    runtime = InlineEngine(job).runtime
    runtime.load({"model": server.model}, {})
    right = 0
    for row in range(5000):  # one by one, in plain sight
        logits = runtime.predict(job.pool("test"), torch.tensor([row]), ("row", row))
        right += int(logits.argmax()) == int(data["y_test"][row])
    assert found[0].generic == right / 5000


@pytest.mark.slow
def test_whoever_stops_listening_does_not_disturb_the_next_order(tmp_path: Path) -> None:
    job = make_job(tmp_path, blobs(clients=6))
    engine = WorkerEngine(job, 2, nothing)
    server = Server(job, engine)
    request = server.build_request("train", 1)
    listener = engine.run(request, range(6))
    first = next(listener).tensors["update"].clone()
    del listener
    again = [reply.tensors["update"].clone() for reply in engine.run(request, range(6))]
    engine.close()
    assert torch.equal(first, again[0])
    inline = [reply.tensors["update"] for reply in InlineEngine(job).run(request, range(6))]
    assert all(torch.equal(a, b) for a, b in zip(again, inline, strict=True))


@pytest.mark.slow
def test_replies_that_wait_for_a_late_one_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedframe.engines.worker_pool.MAX_HELD_BYTES", 1)  # one early reply, and the others pause
    job = make_job(tmp_path, blobs(clients=9))
    engine = WorkerEngine(job, 3, nothing)
    request = Server(job, engine).build_request("train", 1)
    units = [reply.unit for reply in engine.run(request, range(9))]
    engine.close()
    assert units == list(range(9))
    assert engine._held_bytes == 0


@pytest.mark.slow
def test_worker_that_dies_in_the_middle_of_a_message_is_noticed(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    notes: list[str] = []
    engine = WorkerEngine(job, 2, notes.append)
    server = Server(job, engine)
    victim = engine.workers[0]
    original = engine._receive
    struck: list[bool] = []

    def take(worker: WorkerHandle, request: Message, retried: set[int]) -> Message | None:
        if worker is victim and not struck:
            struck.append(True)
            worker.pipe.recv_bytes()  # its reply is lost on the way
            os.kill(worker.process.pid or 0, signal.SIGKILL)
        return original(worker, request, retried)

    engine._receive = take  # type: ignore[method-assign]
    server.run_round(1, nothing)
    engine.close()
    unharmed = Server(job, InlineEngine(job))
    unharmed.run_round(1, nothing)
    assert torch.equal(server.model, unharmed.model)
    assert len(notes) == 1
