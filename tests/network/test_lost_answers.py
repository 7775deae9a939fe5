"""Answers that get lost on the way: the request is sent again, the work is done once, and nobody waits for ever."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

import fedframe.network.engine as engine_module
import fedframe.network.transport as transport_module
from fedframe.core.client_runtime import ClientRuntime
from fedframe.core.message import Message
from fedframe.core.server import Server
from fedframe.network.node import NodeRuntime
from fedframe.network.node_request import RequestNumbers, refuse_stale
from fedframe.network.transport import Delivery
from fedframe.util.files import read_json, write_json
from tests.helpers import nothing
from tests.network.in_process import Clock, InProcessTransport, clock, make, node_runtimes, remote_engine

__all__ = ["clock"]


class LossyTransport(InProcessTransport):
    """Loses the first answer of every node in every round; says that it might have, or nothing at all."""

    def __init__(self, nodes: Mapping[str, NodeRuntime], announced: bool) -> None:
        super().__init__(nodes)
        self.announced = announced
        self.lost: set[tuple[str, int]] = set()
        self.doubts: list[Delivery] = []

    def send(self, node: str, payload: bytes, round: int, timeout: float | None) -> str:
        ticket = super().send(node, payload, round, timeout)
        if (node, round) not in self.lost:
            self.lost.add((node, round))
            del self._waiting[ticket]
            if self.announced:
                self.doubts.append(Delivery(ticket, doubtful=True))
        return ticket

    def collect(self, tickets: Collection[str]) -> list[Delivery]:
        doubts, self.doubts = self.doubts, []
        return [*doubts, *super().collect(tickets)]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """What sites do from now on: the kind of work, the round, the client."""
    performed: list[tuple[str, int, int]] = []
    perform = ClientRuntime.perform

    def note(self: ClientRuntime, request: Message, unit: int) -> Message:
        performed.append((request.kind, request.round, unit))
        return perform(self, request, unit)

    monkeypatch.setattr(ClientRuntime, "perform", note)
    return performed


@pytest.mark.slow
@pytest.mark.parametrize("announced", [True, False])
def test_a_lost_answer_costs_no_round_and_no_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock, announced: bool
) -> None:
    began = clock.now
    job, _ = make("scaffold", tmp_path / "run")
    node_of_client = [f"node{client}" for client in range(len(job.federation))]
    transport = LossyTransport(node_runtimes(job, tmp_path / "nodes", node_of_client), announced)
    notes: list[str] = []
    server = Server(job, engine_module.NetworkEngine(job, transport, node_of_client, "run1", notes.append), print)
    unbroken_job, _ = make("scaffold", tmp_path / "unbroken")
    unbroken_transport = InProcessTransport(node_runtimes(unbroken_job, tmp_path / "unbroken-nodes", node_of_client))
    unbroken = Server(
        unbroken_job,
        engine_module.NetworkEngine(unbroken_job, unbroken_transport, node_of_client, "run1", print),
        print,
    )
    performed = counted(monkeypatch)
    for number in (1, 2):
        for each in (server, unbroken):
            performed.clear()
            line = each.run_round(number, nothing)
            each.round = number
            assert line.dropped == 0
            assert sorted(performed) == [("train", number, client) for client in range(len(node_of_client))]
    assert len(transport.sent) == 2 * len(unbroken_transport.sent)
    assert any("still no answer of node0, node1" in note for note in notes) is not announced
    delay = transport_module.DOUBT_DELAY if announced else transport_module.REPEAT_DELAY
    assert (
        2 * delay <= clock.now - began < 2 * delay + 2
    )  # a repetition in each of two rounds, noticed at the next poll
    tensors = unbroken.tensors()
    assert all(tensor.equal(tensors[name]) for name, tensor in server.tensors().items())


@pytest.mark.slow
def test_an_answer_that_came_too_late_serves_when_it_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each asking has a number of its own; work that takes longer than `patience` is still done once."""
    job, _ = make("scaffold", tmp_path / "run", patience=20, min_clients=4)
    late = {"node1", "node2"}
    performed = counted(monkeypatch)

    def spoil(node: str, content: bytes) -> bytes | None:
        if node in late:
            late.discard(node)
            return None
        return content

    engine = remote_engine(job, tmp_path / "nodes", 4, spoil)
    notes: list[str] = []
    engine.notify = notes.append
    assert Server(job, engine, notes.append).run_round(1, nothing).dropped == 0
    assert sorted(performed) == [("train", 1, client) for client in range(4)]
    assert any("longer than patience" in note for note in notes)
    assert any("still no answer" in note for note in notes) is False


def test_doubts_do_not_flood_a_network_with_models() -> None:
    pending = transport_module.PendingRequest("north", None, 0.0)  # type: ignore[arg-type]
    pending.mark_sent(100.0)
    waits = []
    for _ in range(5):
        before = pending.sent_at
        pending.mark_doubtful()
        waits.append(pending.resend_at - before)
        pending.mark_sent(pending.resend_at)
    assert waits == [5.0, 10.0, 20.0, 40.0, 80.0]


def test_a_request_is_sent_again_ever_less_often() -> None:
    pending = transport_module.PendingRequest("north", None, 0.0)  # type: ignore[arg-type]
    now, waits = 0.0, []
    for _ in range(4):
        pending.mark_sent(now)
        waits.append(pending.resend_at - now)
        now = pending.resend_at
    assert waits == [600.0, 1200.0, 2400.0, 4800.0]


def test_requests_are_newer_also_after_the_organisers_folder_came_from_an_older_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 1_800_000_000.0
    monkeypatch.setattr(time, "time", lambda: clock)
    numbers = RequestNumbers(tmp_path)
    first = numbers.next()
    copy = read_json(numbers.path)
    clock += 5
    second = RequestNumbers(tmp_path).next()
    write_json(numbers.path, copy)
    clock += 5
    third = RequestNumbers(tmp_path).next()
    clock -= 10**6  # and if the clock is set back, what the folder says counts
    fourth = RequestNumbers(tmp_path).next()
    assert first < second < third < fourth < 2**63
    refuse_stale(tmp_path, [0], third)
    refuse_stale(tmp_path, [0], fourth)
