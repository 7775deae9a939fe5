"""How many replies are enough: rounds wait for them, and end when they can never come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedframe.core.client_runtime import ClientRuntime
from fedframe.core.message import Message
from fedframe.core.server import Server
from fedframe.errors import DivergedError
from fedframe.network.envelope import decode_envelope
from tests.helpers import nothing
from tests.network.flawed_answers import FLAWS, server_with, tensors_changed, with_nan
from tests.network.in_process import Clock, InProcessTransport, clock, make, remote_engine

__all__ = ["clock"]


def test_below_the_minimum_a_round_waits_and_says_so(tmp_path: Path) -> None:
    job, _ = make("fedavg", tmp_path / "run", min_clients=3)
    engine = remote_engine(job, tmp_path / "nodes", 4)
    assert isinstance(engine.transport, InProcessTransport)
    transport = engine.transport
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        transport.away.discard("node1")  # somebody hears of it and comes back

    engine.notify = note
    transport.away |= {"node1", "node2"}
    record = Server(job, engine, note).run_round(1, nothing)
    assert record.dropped == 1
    assert any("waiting for 1 more of at least 3" in text and "not connected" in text for text in notes)


SPOILT: dict[str, Any] = {
    "more samples than it has": FLAWS["more samples than it has"],
    "left out": FLAWS["nothing for its client"],
}


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("flaw", SPOILT)
def test_replies_that_cannot_be_used_are_no_part_of_the_minimum(tmp_path: Path, flaw: str, secure: bool) -> None:
    well = {"node0"}
    notes: list[str] = []

    def spoil(node: str, content: bytes) -> bytes:
        kinds = {message.kind for message in decode_envelope(content)[0]}
        spoilt: bytes = SPOILT[flaw](content) if node not in well and kinds == {"train"} else content
        return spoilt

    def note(text: str) -> None:
        notes.append(text)
        if "waiting" in text:  # somebody hears of it and mends a node
            well.add(f"node{len(well)}")

    job, _ = make("fedavg", tmp_path / "run", min_clients=3, secure=secure)
    engine = remote_engine(job, tmp_path / "nodes", 4, spoil)
    engine.notify = note
    record = Server(job, engine, note).run_round(1, nothing)
    assert (record.clients, record.dropped) == (4, 1)
    assert "waiting for 2 more of at least 3 clients (node1: " in notes[0]
    assert "waiting for 1 more of at least 3 clients (node2: " in notes[1]
    assert "client 3" in notes[2]  # refused or left out in the end, and said


def test_a_node_that_is_asked_again_and_again_gets_longer_pauses(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(clock, "sleep", sleep)
    server, _ = server_with(tmp_path, lambda node, content: content if node == "node0" else "disk full")
    with pytest.raises(KeyboardInterrupt):
        server.run_round(1, nothing)
    assert pauses == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]


def test_a_slow_node_is_dropped_after_patience(tmp_path: Path) -> None:
    server, transport = server_with(tmp_path, lambda node, content: None if node == "node3" else content, patience=20)
    record = server.run_round(1, nothing)
    assert (record.dropped, record.figures["lost"]) == (1, 1)
    assert any("longer than patience" in note for note in transport.notes)


def test_a_request_that_expires_on_the_way_is_one_that_took_too_long(tmp_path: Path, clock: Clock) -> None:
    """Flower reports an expired message in a text of its own, perhaps before our deadline."""

    def expire(node: str, content: bytes) -> bytes | str:
        if node == "node3":
            clock.sleep(21)
            return "Message Unavailable"
        return content

    server, transport = server_with(tmp_path, expire, patience=20)
    assert server.run_round(1, nothing).dropped == 1
    assert any("longer than patience = 20" in note for note in transport.notes)


@pytest.mark.slow
def test_replies_that_are_all_flawed_end_the_run(tmp_path: Path) -> None:
    server, _ = server_with(tmp_path, lambda node, content: tensors_changed(content, with_nan))
    with pytest.raises(DivergedError):
        server.run_round(1, nothing)


@pytest.mark.slow
@pytest.mark.parametrize(("diverged", "ends"), [(1, False), (2, True), (4, True)])
def test_training_that_gives_no_numbers_ends_the_run_if_too_few_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, diverged: int, ends: bool
) -> None:
    """To ask the same nodes for the same again would give the same."""
    perform = ClientRuntime.perform

    def blown(self: ClientRuntime, request: Message, unit: int) -> Message:
        reply = perform(self, request, unit)
        return replace(reply, numbers={**reply.numbers, "loss": float("nan")}) if unit < diverged else reply

    monkeypatch.setattr(ClientRuntime, "perform", blown)
    server, transport = server_with(tmp_path, None, min_clients=3)
    if ends:
        with pytest.raises(DivergedError, match=r"Round 1: the training of 0, 1.* at least 3 of 4 .* smaller lr \(now"):
            server.run_round(1, nothing)
    else:
        assert server.run_round(1, nothing).dropped == 1
        assert any("client 0" in note and ("'nan'" in note or "NaN" in note) for note in transport.notes)
