"""Answers that get lost on the way: the letter is sent again, the work is done once, and nobody waits for ever."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

import fedframe.engines.post as post_module
import fedframe.engines.remote as remote
from fedframe.core.files import read_json, write_json
from fedframe.core.message import Message
from fedframe.core.server import Server
from fedframe.core.site import Site
from fedframe.engines.post import Delivery
from fedframe.federation.numbering import Numbers, refuse_late
from fedframe.federation.work import NodeWork
from tests.federation.here import HerePost, node_works
from tests.federation.test_remote import make
from tests.helpers import nothing


class LosingPost(HerePost):
    """Loses the first answer of every node in every round; says that it might have, or nothing at all."""

    def __init__(self, nodes: Mapping[str, NodeWork], says: bool) -> None:
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


@pytest.mark.parametrize("says", [True, False])
def test_a_lost_answer_costs_no_round_and_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: bool) -> None:
    monkeypatch.setattr(remote, "POLL", 0.01)
    if not says:
        monkeypatch.setattr(post_module, "REPEAT", 0.1)
    performed: list[tuple[str, int, int]] = []
    perform = Site.perform

    def counted(self: Site, order: Message, unit: int) -> Message:
        performed.append((order.kind, order.round, unit))
        return perform(self, order, unit)

    job, _ = make("scaffold", tmp_path / "run")
    seats = [f"node{client}" for client in range(len(job.federation))]
    post = LosingPost(node_works(job, tmp_path / "nodes", seats), says)
    server = Server(job, remote.RemoteEngine(job, post, seats, "run1", print), print)
    calm_job, _ = make("scaffold", tmp_path / "calm")
    calm_post = HerePost(node_works(calm_job, tmp_path / "calm-nodes", seats))
    calm = Server(calm_job, remote.RemoteEngine(calm_job, calm_post, seats, "run1", print), print)
    monkeypatch.setattr(Site, "perform", counted)
    for number in (1, 2):
        for each in (server, calm):
            performed.clear()
            line = each.run_round(number, nothing)
            each.round = number
            assert line.dropped == 0
            assert sorted(performed) == [("train", number, client) for client in range(len(seats))]
    assert len(post.letters) == 2 * len(calm_post.letters)
    tensors = calm.tensors()
    assert all(tensor.equal(tensors[name]) for name, tensor in server.tensors().items())


def test_a_letter_is_sent_again_ever_less_often() -> None:
    letter = post_module.Letter("north", None, 0.0)  # type: ignore[arg-type]
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
