"""What nodes and networks can do to a round, tried without a network: nothing flawed is merged, nothing is lost."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import fedframe.network.engine as engine_module
from fedframe.core.job import Job
from fedframe.core.message import Message
from fedframe.core.server import Server
from fedframe.errors import DataError, ProtocolError
from fedframe.network.envelope import decode_envelope, encode_envelope
from fedframe.network.node_request import NodeRequest
from fedframe.network.transport import Delivery
from fedframe.runs.session import execute
from fedframe.util.files import read_json, read_tensors
from tests.helpers import Recorder, equal_states, nothing, same_file
from tests.network.flawed_answers import FLAWS, server_with, tensors_changed
from tests.network.in_process import InProcessTransport, clock, make, node_runtimes, remote_engine

__all__ = ["clock"]
NEWEST = 1 << 60  # the number of a request that is newer than all that an engine has sent


@pytest.mark.slow
@pytest.mark.parametrize("flaw", FLAWS)
def test_a_flawed_answer_is_never_merged_but_counted_and_shown(tmp_path: Path, flaw: str) -> None:
    node_of_client = [f"node{client}" for client in range(4)]
    runs = []
    for name in ("spoilt", "absent"):
        now = {"round": 0}

        def spoil(node: str, content: bytes, name: str = name, now: dict[str, int] = now) -> bytes | str | None:
            if node != "node1" or now["round"] < 2:
                return content
            found: bytes | str = FLAWS[flaw](content) if name == "spoilt" else "not there"
            return found

        job, _ = make("scaffold", tmp_path / name)
        transport = InProcessTransport(node_runtimes(job, tmp_path / f"nodes-{name}", node_of_client), spoil)
        notes: list[str] = []
        engine = engine_module.NetworkEngine(job, transport, node_of_client, "run1", notes.append)
        server = Server(job, engine, notes.append)
        records = []
        for number in (1, 2, 3):
            now["round"] = number
            records.append(server.run_round(number, nothing))
            server.round = number
        runs.append((server, records, notes))
    (spoilt, records, notes), (absent, _, _) = runs
    assert [record.dropped for record in records] == [0, 1, 1]
    assert sum("Round 2" in note for note in notes) == 1
    assert equal_states(spoilt.tensors(), absent.tensors())  # as if it had not been there


COUNTS: dict[str, Any] = {
    "NaN for whether its stage diverged": {"diverged": torch.tensor(float("nan"))},
    "many diverged stages of one client": {"diverged": torch.tensor(10**6)},
    "two numbers in the place of one": {"diverged": torch.zeros(2, dtype=torch.int64)},
    "a count more": {"more": torch.tensor(1)},
    "fewer than no hits": {"hits": torch.tensor(-1)},
    "more samples than it has": {"samples": torch.tensor(10**6)},
    "hits as fractions": {"hits": torch.tensor(0.5)},
}


@pytest.mark.slow
@pytest.mark.parametrize("flaw", COUNTS)
def test_flawed_counts_of_own_models_are_left_out_and_the_run_ends_well(tmp_path: Path, flaw: str) -> None:
    def spoil(node: str, content: bytes) -> bytes:
        messages, notes = decode_envelope(content)
        if node != "node1":
            return content
        worse = [replace(m, tensors={**m.tensors, **COUNTS[flaw]}) if m.kind == "personalise" else m for m in messages]
        return encode_envelope(worse, notes)

    job, run = make("fedavg", tmp_path / "run", rounds=1)
    execute(job, run, Recorder(), lambda job, note: remote_engine(job, tmp_path / "nodes", 4, spoil))
    assert run.finished
    assert "the counts of client 1 were refused" in (run.path / "log.txt").read_text()
    assert read_json(run.path / "summary.json")["scores"]["personal"] is not None


ESCAPE = "\x1b[2J\r\n2026-01-01 00:00:00 forged\u202e"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["the name of a tensor", "an error", "the name of another run"])
def test_a_nodes_text_reaches_the_screen_and_the_log_as_one_short_line(tmp_path: Path, way: str) -> None:
    text = ESCAPE + "A" * 100_000

    def spoil(node: str, content: bytes) -> bytes | str:
        if node != "node1":
            return content
        if way == "the name of a tensor":
            return tensors_changed(content, lambda tensors: {**tensors, text: torch.zeros(1)})
        return text if way == "an error" else encode_envelope(decode_envelope(content)[0], {"run": text})

    job, run = make("fedavg", tmp_path / "run", rounds=1, personal=False)
    display = Recorder()
    execute(job, run, display, lambda job, note: noting(remote_engine(job, tmp_path / "nodes", 4, spoil), note))
    shown = [text for text in display.notes if "client 1" in text]
    assert shown
    assert all(text.isprintable() and len(text) <= 1000 for text in display.notes)
    lines = (run.path / "log.txt").read_text().splitlines()
    assert not [line for line in lines if line.startswith("2026-01-01")]
    assert all(line.isprintable() and len(line) <= 1100 for line in lines)


def noting(engine: engine_module.NetworkEngine, note: Any) -> engine_module.NetworkEngine:
    engine.notify = note
    return engine


def test_an_answer_to_nothing_that_was_asked_is_left_alone(tmp_path: Path) -> None:
    server, transport = server_with(tmp_path, None)
    collect = transport.collect

    def with_another(tickets: Any) -> list[Delivery]:
        return [Delivery("of nobody", b"x"), *collect(tickets), Delivery("0", problem="once more")]

    transport.collect = with_another  # type: ignore[method-assign]
    assert server.run_round(1, nothing).dropped == 0


def test_a_lost_reply_leaves_no_private_state_behind(tmp_path: Path) -> None:
    """A control variate of a round that the server has not merged is forgotten; the node goes on from the last one."""
    lose = {"now": False}
    server, transport = server_with(
        tmp_path, lambda node, content: "cut" if lose["now"] and node == "node1" else content
    )
    server.run_round(1, nothing)
    server.round = 1
    store = transport.known["node1"].runtime_for("run1").job.store
    client = next(iter(transport.known["node1"].clients))
    merged = store.load(client, 2)
    lose["now"] = True
    server.run_round(2, nothing)
    server.round = 2
    assert not equal_states(store.load(client, 3), merged)  # it did train, and committed
    lose["now"] = False
    request = server.build_request("train", 3)
    before = NodeRequest("run1", request, {"own": [client]}, {client: 1}, number=NEWEST)
    transport.known["node1"].handle(before.to_bytes())
    assert equal_states(store.load(client, 3), merged)


def test_a_repeated_request_gets_the_same_answer(tmp_path: Path) -> None:
    server, transport = server_with(tmp_path, None)
    server.run_round(1, nothing)
    server.round = 1
    node = transport.known["node0"]
    client = next(iter(node.clients))
    payload = NodeRequest(
        "run1", server.build_request("train", 2), {"train": [client]}, {client: 1}, number=NEWEST
    ).to_bytes()
    first = node.handle(payload)
    again = node.handle(payload)  # what it said is at hand
    node.last_answer = (b"", b"")
    anew = node.handle(payload)  # as after a restart: the work is done again
    assert first[2] == again[2] == anew[2]
    for one, other in zip(first[1], again[1], strict=True):
        assert one.head() == other.head()
        assert equal_states(dict(one.tensors), dict(other.tensors))


@pytest.mark.slow
def test_a_request_that_comes_after_a_newer_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have the node forget states that were merged since."""
    server, transport = server_with(tmp_path, None, rounds=6)
    node = transport.known["node1"]
    client = next(iter(node.clients))
    sent: dict[int, bytes] = {}
    deliver = transport.send

    def send(name: str, payload: bytes, round: int, timeout: float | None) -> str:
        if name != "node1":
            return deliver(name, payload, round, timeout)
        sent[round] = payload
        if round not in (2, 3):
            return deliver(name, payload, round, timeout)
        ticket = f"late-{round}"  # patience is over, and the request still waits at the node
        transport._waiting[ticket] = Delivery(ticket, problem="late")
        return ticket

    monkeypatch.setattr(transport, "send", send)
    for number in (1, 2, 3, 4):
        server.run_round(number, nothing)
        server.round = number
    store = node.runtime_for("run1").job.store
    merged = store.load(client, 5)
    for late in (3, 1):
        with pytest.raises(ProtocolError, match="after a newer one"):
            node.handle(sent[late])
    assert equal_states(store.load(client, 5), merged)
    node.handle(sent[4])  # the same once more is answered again


def test_requests_of_a_resumed_run_are_newer_than_those_of_a_killed_one(tmp_path: Path) -> None:
    server, transport = server_with(tmp_path, None)
    kept = server.tensors()
    server.run_round(1, nothing)  # and the process is killed before it has written that down
    engine = engine_module.NetworkEngine(server.job, transport, server.engine.node_of_client, "run1", print)  # type: ignore[attr-defined]
    resumed = Server(server.job, engine, transport.notes.append)
    resumed.restore(kept, 0)
    assert resumed.run_round(1, nothing).dropped == 0


def test_a_torn_note_of_the_newest_request_keeps_nobody_out(tmp_path: Path) -> None:
    server, _ = server_with(tmp_path, None)
    server.run_round(1, nothing)
    server.round = 1
    notes = list((tmp_path / "nodes").glob("*/letters/taken-*.json"))
    assert len(notes) == 4
    for path in notes:
        path.write_bytes(b"")
    assert server.run_round(2, nothing).dropped == 0


@pytest.mark.slow
@pytest.mark.parametrize(("method", "personal"), [("scaffold", True), ("scaffold", False), ("fedmtl", False)])
def test_every_node_is_told_when_the_run_is_over(tmp_path: Path, method: str, personal: bool) -> None:
    job, run = make(method, tmp_path / "run", personal=personal, rounds=1)
    engine = remote_engine(job, tmp_path / "nodes", 4)
    assert isinstance(engine.transport, InProcessTransport)
    kept: list[torch.Tensor] = []
    for node in engine.transport.known.values():
        node.on_finished = lambda job, request: kept.append(request.tensors["model"])
    execute(job, run, Recorder(), lambda job, note: engine)
    final = read_tensors(run.path / "checkpoint.safetensors")[0]["model"]
    assert len(kept) == 4
    assert all(torch.equal(model, final) for model in kept)
    line = run.metrics()[-1]
    assert ("client" in line, "personal" in line) == ((True, False) if method == "scaffold" else (False, True))


@pytest.mark.slow
def test_a_server_stage_that_gives_no_numbers_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    """One member's statistics can overflow what is fitted to all of them; nodes would refuse such a model for ever."""

    def spoil(node: str, content: bytes) -> bytes:
        messages, _ = decode_envelope(content)
        if node != "node1" or messages[0].kind != "statistics":
            return content
        return tensors_changed(
            content, lambda tensors: {name: torch.full_like(t, 1.7e308) for name, t in tensors.items()}
        )

    job, run = make("fedavg+ccvr", tmp_path / "run", rounds=1)
    display = Recorder()

    def engine(job: Job, note: Any) -> engine_module.NetworkEngine:
        made = remote_engine(job, tmp_path / "nodes", 4, spoil)
        made.notify = pytest.fail  # it must not wait for anybody
        return made

    execute(job, run, display, engine)
    assert "ccvr gave NaN or infinite weights" in (run.path / "log.txt").read_text()
    assert read_json(run.path / "summary.json")["scores"]["client"]["final"] > 0
    plain, other = make("fedavg", tmp_path / "plain", rounds=1)
    execute(plain, other, Recorder(), lambda job, note: remote_engine(job, tmp_path / "nodes-plain", 4))
    models = [read_tensors(each.path / "model.safetensors")[0] for each in (run, other)]
    assert equal_states(*models)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["scaffold", "fedrep", "spherefed"])
def test_a_resumed_run_equals_an_unbroken_one(tmp_path: Path, method: str) -> None:
    job, whole = make(method, tmp_path / "whole")
    execute(job, whole, Recorder(), lambda job, note: remote_engine(job, tmp_path / "nodes1"))
    job, broken = make(method, tmp_path / "broken")
    works = node_runtimes(job, tmp_path / "nodes2", node_of_client := [f"node{client % 3}" for client in range(4)])

    class Stopped(Recorder):
        def round(self, record: Any) -> None:
            if record.round == 2:
                raise KeyboardInterrupt

    def engine(job: Any, note: Any) -> engine_module.NetworkEngine:
        return engine_module.NetworkEngine(job, InProcessTransport(works), node_of_client, "run1", note)

    with pytest.raises(KeyboardInterrupt):
        execute(job, broken, Stopped(), engine)
    execute(job, broken, Recorder(), engine)
    assert same_file(whole.path / "model.safetensors", broken.path / "model.safetensors")
    for one, other in zip(whole.metrics(), broken.metrics(), strict=True):
        assert {k: v for k, v in one.items() if k != "seconds"} == {k: v for k, v in other.items() if k != "seconds"}


class Restarting(InProcessTransport):
    """Nodes whose processes start anew before every request: what they know is what lies on their disks."""

    def __init__(self, job: Job, folder: Path, node_of_client: list[str]) -> None:
        self.start = partial(node_runtimes, job, folder, node_of_client)
        super().__init__(self.start())

    def send(self, node: str, payload: bytes, round: int, timeout: float | None) -> str:
        self.known = self.start()
        return super().send(node, payload, round, timeout)


def engine_over(
    transport: InProcessTransport, node_of_client: list[str], job: Job, note: Any
) -> engine_module.NetworkEngine:
    return engine_module.NetworkEngine(job, transport, node_of_client, "run1", note)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["scaffold", "fedper", "fedloge", "ditto", "feddyn"])
def test_a_node_keeps_its_private_state_over_a_restart(tmp_path: Path, method: str) -> None:
    node_of_client = [f"node{client % 3}" for client in range(4)]
    runs = []
    for name in ("staying", "restarting"):
        job, run = make(method, tmp_path / name)
        folder = tmp_path / f"nodes-{name}"
        transport = (
            Restarting(job, folder, node_of_client)
            if name == "restarting"
            else InProcessTransport(node_runtimes(job, folder, node_of_client))
        )
        execute(job, run, Recorder(), partial(engine_over, transport, node_of_client))
        runs.append((run, folder))
    (first, kept), (second, restarted) = runs
    assert same_file(first.path / "model.safetensors", second.path / "model.safetensors")
    assert read_json(first.path / "summary.json")["scores"] == read_json(second.path / "summary.json")["scores"]
    states = sorted(path.relative_to(kept) for path in kept.glob("node*/clients/*/*/*"))
    assert len(states) == 12  # of each of four clients those of the last two checkpoints and the newest
    for path in states:
        assert equal_states(read_tensors(kept / path)[0], read_tensors(restarted / path)[0])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tasks": {"train": [3]}}, "not at this node"),
        ({"request": Message("train", 1, -1, {"model": torch.zeros(3)}, {"lr": 0.1})}, "brings a model"),
        ({"request": Message("train", 1, -1, {}, {"lr": 0.1})}, "no model"),
        ({"request": "nan"}, "NaN"),
        ({"request": "round"}, "Round 99"),
        ({"request": "fixed"}, "sets head.nothing"),
        ({"run": "../../etc"}, "letters and digits"),
    ],
)
def test_a_node_refuses_requests_that_do_not_fit(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    server, transport = server_with(tmp_path, None)
    node = transport.known["node0"]
    request = server.build_request("train", 1)
    odd = {
        "nan": replace(request, tensors={**request.tensors, "model": request.tensors["model"] * float("nan")}),
        "round": replace(request, round=99),
        "fixed": replace(request, tensors={**request.tensors, "fixed/head.nothing": torch.zeros(1)}),
    }
    node_request = NodeRequest("run1", request, {"train": sorted(node.clients)})
    chosen: dict[str, Any] = {k: odd.get(v, v) if isinstance(v, str) else v for k, v in change.items()}
    node_request = replace(node_request, **chosen)
    with pytest.raises(DataError, match=said):
        node.handle(node_request.to_bytes())


def test_a_node_does_only_what_it_knows(tmp_path: Path) -> None:
    payload = encode_envelope([Message("train", 1)], {"run": "run1", "tasks": {"score": [0]}, "seen": {}, "number": 1})
    with pytest.raises(DataError, match="there is no kind of work 'score'"):
        NodeRequest.from_bytes(payload)


@pytest.mark.slow
def test_one_request_per_node_and_round(tmp_path: Path) -> None:
    job, run = make("fedloge", tmp_path / "run")
    engine = remote_engine(job, tmp_path / "nodes", 4)
    assert isinstance(engine.transport, InProcessTransport)
    execute(job, run, Recorder(), lambda job, note: engine)
    rounds = [round for _, round in engine.transport.sent]
    assert {round: rounds.count(round) for round in (1, 2, 3)} == {1: 4, 2: 4, 3: 4}


@pytest.mark.slow
def test_control_variates_add_up_after_any_losses(tmp_path: Path) -> None:
    """SCAFFOLD's c is the weighted mean of all c_k: it stays so only if a lost c_k is forgotten at its node."""
    draw = torch.Generator().manual_seed(1)

    def spoil(node: str, content: bytes) -> bytes | str:
        return "cut" if float(torch.rand((), generator=draw)) < 0.4 else content

    server, transport = server_with(tmp_path, spoil, rounds=8, min_clients=1)
    lost = 0
    for number in range(1, 9):
        lost += server.run_round(number, nothing).dropped
        server.round = number
    assert lost > 5
    total = torch.zeros(server.layout.trainable, dtype=torch.float64)
    assert isinstance(server.engine, engine_module.NetworkEngine)
    sizes = server.job.federation.train.sizes()
    for node in transport.known.values():
        for client in node.clients:
            state = node.runtime_for("run1").job.store.load(client, int(server.engine.seen[client]) + 1)
            if state:
                total += state["scaffold/c"].double() * float(sizes[client] / sizes.sum())
    assert torch.allclose(total, server.state["scaffold/c"].double(), atol=1e-5)
    assert float(total.abs().max()) > 1e-3
