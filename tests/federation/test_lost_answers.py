"""Answers that get lost on the way: the letter is sent again, the work is done once, and nobody waits for ever."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

import fedframe.network.engine as remote
import fedframe.network.transport as post_module
from fedframe.core.client_runtime import ClientRuntime
from fedframe.core.message import Message
from fedframe.core.server import Server
from fedframe.network.node import NodeRuntime
from fedframe.network.request_numbers import Numbers, refuse_late
from fedframe.network.transport import Delivery
from fedframe.util.files import read_json, write_json
from tests.federation.here import HerePost, node_works, remote_engine
from tests.federation.test_remote import make
from tests.helpers import nothing


class LosingPost(HerePost):
    """Loses the first answer of every node in every round; says that it might have, or nothing at all."""

    def __init__(self, nodes: Mapping[str, NodeRuntime], says: bool) -> None:
        super().__init__(nodes)
        self.says = says
        self.lost: set[tuple[str, int]] = set()
        self.doubts: list[Delivery] = []

    def send(self, node: str, letter: bytes, round: int, seconds: float | None) -> str:
        ticket = super().send(node, letter, round, seconds)
        if (node, round) not in self.lost:
            self.lost.add((node, round))
            del self._waiting[ticket]
            if self.says:
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


@pytest.mark.parametrize("says", [True, False])
def test_a_lost_answer_costs_no_round_and_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: bool) -> None:
    monkeypatch.setattr(remote, "POLL", 0.01)
    monkeypatch.setattr(post_module, "REPEAT", 0.4 if not says else 3.0)  # without doubts it would take longer
    monkeypatch.setattr(post_module, "DOUBT", 0.01)
    monkeypatch.setattr(remote, "REMIND", 0.1)
    job, _ = make("scaffold", tmp_path / "run")
    seats = [f"node{client}" for client in range(len(job.federation))]
    post = LosingPost(node_works(job, tmp_path / "nodes", seats), says)
    notes: list[str] = []
    server = Server(job, remote.NetworkEngine(job, post, seats, "run1", notes.append), print)
    calm_job, _ = make("scaffold", tmp_path / "calm")
    calm_post = HerePost(node_works(calm_job, tmp_path / "calm-nodes", seats))
    calm = Server(calm_job, remote.NetworkEngine(calm_job, calm_post, seats, "run1", print), print)
    performed = counted(monkeypatch)
    for number in (1, 2):
        for each in (server, calm):
            performed.clear()
            line = each.run_round(number, nothing)
            each.round = number
            assert line.dropped == 0
            assert sorted(performed) == [("train", number, client) for client in range(len(seats))]
    assert len(post.letters) == 2 * len(calm_post.letters)
    assert any("still no answer of node0, node1" in note for note in notes) is not says
    tensors = calm.tensors()
    assert all(tensor.equal(tensors[name]) for name, tensor in server.tensors().items())


def test_an_answer_that_came_too_late_serves_when_it_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each asking has a number of its own; work that takes longer than `patience` is still done once."""
    monkeypatch.setattr(remote, "RETRY", 0.01)
    monkeypatch.setattr(remote, "POLL", 0.01)
    job, _ = make("scaffold", tmp_path / "run", patience=0.2, min_clients=4)
    late = {"node1", "node2"}
    performed = counted(monkeypatch)

    def spoil(node: str, content: bytes) -> bytes | None:
        if node in late:
            late.discard(node)
            return None
        return content

    engine = remote_engine(job, tmp_path / "nodes", 4, spoil)
    notes: list[str] = []
    engine.note = notes.append
    assert Server(job, engine, notes.append).run_round(1, nothing).dropped == 0
    assert sorted(performed) == [("train", 1, client) for client in range(4)]
    assert any("longer than patience" in note for note in notes)
    assert any("still no answer" in note for note in notes) is False


def test_doubts_do_not_flood_a_network_with_models() -> None:
    letter = post_module.PendingRequest("north", None, 0.0)  # type: ignore[arg-type]
    letter.sent(100.0)
    waits = []
    for _ in range(5):
        before = letter.last
        letter.doubt()
        waits.append(letter.again - before)
        letter.sent(letter.again)
    assert waits == [5.0, 10.0, 20.0, 40.0, 80.0]


def test_a_letter_is_sent_again_ever_less_often() -> None:
    letter = post_module.PendingRequest("north", None, 0.0)  # type: ignore[arg-type]
    now, waits = 0.0, []
    for _ in range(4):
        letter.sent(now)
        waits.append(letter.again - now)
        now = letter.again
    assert waits == [600.0, 1200.0, 2400.0, 4800.0]


def test_letters_are_newer_also_after_the_organisers_folder_came_from_an_older_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 1_800_000_000.0
    monkeypatch.setattr(time, "time", lambda: clock)
    numbers = Numbers(tmp_path)
    first = numbers.next()
    copy = read_json(numbers.path)
    clock += 5
    second = Numbers(tmp_path).next()
    write_json(numbers.path, copy)
    clock += 5
    third = Numbers(tmp_path).next()
    clock -= 10**6  # and if the clock is set back, what the folder says counts
    fourth = Numbers(tmp_path).next()
    assert first < second < third < fourth < 2**63
    refuse_late(tmp_path, [0], third)
    refuse_late(tmp_path, [0], fourth)
