"""Secure aggregation over nodes: sums come out right, also if somebody goes, and no node helps to read one reply."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography")

import fedframe.network.engine as engine_module
from fedframe.core.client_runtime import ClientRuntime
from fedframe.core.job import Job
from fedframe.core.message import Message
from fedframe.core.server import Server
from fedframe.errors import DataError, DivergedError, SettingError
from fedframe.methods.recipes import make_method
from fedframe.network.compatibility import check_secure_aggregation
from fedframe.network.envelope import decode_envelope, encode_envelope
from fedframe.network.masker import Masker
from fedframe.network.masks import MaskingGroup, RingVector, from_fixed_point, mask_context, unmask
from fedframe.network.node_request import NodeRequest
from fedframe.network.secure_aggregation import diverged_clients, masked_reply, masking_group_for
from fedframe.runs.session import execute
from fedframe.util.files import read_json, read_tensors
from tests.helpers import Recorder, nothing
from tests.network.in_process import InProcessTransport, clock, make, remote_engine

__all__ = ["clock"]
METHODS = [
    "fedavg",
    "scaffold",
    "fedadam",
    "feddyn",
    "spherefed",
    "fedavg+etf+gmv",
    "fednh",
    "fedloge",
    "fedexp",
    "qfedavg",
    "spherefed+average",
    "fedavg+analytic",
]


def engine_at(folder: Path, job: Job, note: Any) -> engine_module.NetworkEngine:
    return remote_engine(job, folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "weighting"),
    [*((method, "samples") for method in METHODS), ("fedavg", "uniform"), ("scaffold", "uniform")],
)
def test_a_secure_run_is_the_plain_run_up_to_rounding(tmp_path: Path, method: str, weighting: str) -> None:
    runs = []
    for hidden in (False, True):
        job, run = make(method, tmp_path / str(hidden), secure=hidden, weighting=weighting, rounds=2, epochs=1)
        folder = tmp_path / f"nodes-{hidden}"
        execute(job, run, Recorder(), partial(engine_at, folder))
        runs.append(run)
    plain, secure_run = (read_tensors(run.path / "model.safetensors")[0] for run in runs)
    for name, tensor in plain.items():
        assert torch.allclose(tensor.double(), secure_run[name].double(), atol=1e-5, rtol=1e-4), name
    first, second = (run.metrics() for run in runs)
    for one, other in zip(first, second, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-4)
        assert (one["dropped"], one["clients"]) == (other["dropped"], other["clients"])
    assert read_json(runs[1].path / "summary.json")["updates_refused"] == 0


def secure_server(tmp_path: Path, spoil: Any = None, **settings: Any) -> tuple[Server, InProcessTransport, list[str]]:
    job, _ = make("scaffold", tmp_path / "run", secure=True, **settings)
    engine = remote_engine(job, tmp_path / "nodes", 4, spoil)
    notes: list[str] = []
    engine.notify = notes.append
    assert isinstance(engine.transport, InProcessTransport)
    return Server(job, engine, notes.append), engine.transport, notes


@pytest.mark.slow
def test_a_client_that_is_gone_is_left_out_of_the_sum(tmp_path: Path) -> None:
    """With node1 gone the result is that of a plain round without it."""
    models = []
    for hidden in (False, True):
        job, _ = make("scaffold", tmp_path / f"run{hidden}", secure=hidden, min_clients=2)
        engine = remote_engine(job, tmp_path / f"nodes{hidden}", 4)
        assert isinstance(engine.transport, InProcessTransport)
        engine.transport.away.add("node1")
        server = Server(job, engine, print)
        record = server.run_round(1, nothing)
        assert (record.dropped, record.figures["lost"]) == (1, 1)
        assert engine.seen.tolist() == [1, 0, 1, 1]
        models.append(server.model)
    assert torch.allclose(models[0], models[1], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "gone", "cut"), [(5, (), "agree"), (5, (), "unmask"), (7, ("node0",), "unmask")])
def test_who_goes_after_its_masked_reply_does_not_cost_the_round(
    tmp_path: Path, clients: int, gone: tuple[str, ...], cut: str
) -> None:
    """Its update is in the sum: the others hold shares of its seeds, also where one more was gone before.

    So it is where all must be in the sum, which is the default.
    """
    least = {"min_clients": 2} if gone else {}
    kinds = ("agree", "unmask") if cut == "agree" else ("unmask",)

    def spoil(node: str, content: bytes) -> bytes | str:
        return "cut" if node == "node2" and decode_envelope(content)[0][0].kind in kinds else content

    models = []
    for hidden in (False, True):
        job, _ = make("scaffold", tmp_path / f"run{hidden}", secure=hidden, clients=clients, **least)
        engine = remote_engine(job, tmp_path / f"nodes{hidden}", clients, spoil)
        assert isinstance(engine.transport, InProcessTransport)
        engine.transport.away |= set(gone)
        server = Server(job, engine, print)
        assert server.run_round(1, nothing).dropped == len(gone)
        models.append(server.model)
    assert torch.allclose(models[0], models[1], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cut", "left out", "something else"])
def test_who_goes_for_good_after_its_masked_reply_costs_the_round_and_no_more(tmp_path: Path, how: str) -> None:
    """Two of four are too many. The others have revealed their masks for them and may not do so again."""

    def spoil(node: str, content: bytes) -> bytes | str:
        messages, notes = decode_envelope(content)
        if node not in ("node2", "node3") or messages[0].kind != "unmask" or messages[0].round > 1:
            return content
        other = [replace(messages[0], tensors={"own": torch.zeros(3, dtype=torch.uint8)})]
        return "cut" if how == "cut" else encode_envelope(other if how == "something else" else [], notes)

    server, transport, notes = secure_server(tmp_path, spoil, min_clients=2)
    before = server.model.clone()
    first = server.run_round(1, nothing)
    assert (first.dropped, first.figures["lost"], torch.equal(server.model, before)) == (4, 4, True)
    assert any("Round 1 is given up" in note for note in notes)
    assert any("did not reveal its masks" in note for note in notes)
    transport.away.add("node2")
    again = server.run_round(1, nothing)  # as an organiser that was killed would: the masks of this round are revealed
    assert (again.dropped, torch.equal(server.model, before)) == (4, True)
    second = server.run_round(2, nothing)
    assert (second.dropped, torch.equal(server.model, before)) == (1, False)
    assert isinstance(server.engine, engine_module.NetworkEngine)
    assert server.engine.seen.tolist() == [2, 2, 0, 2]


@pytest.mark.slow
def test_a_round_that_was_given_up_is_a_line_without_a_loss(tmp_path: Path) -> None:
    def spoil(node: str, content: bytes) -> bytes | str:
        message = decode_envelope(content)[0][0]
        cut = node in ("node2", "node3") and (message.kind, message.round) == ("unmask", 2)
        return "cut" if cut else content

    private = {"privacy_clip": 1.0, "privacy_noise": 1.0, "weighting": "uniform"}
    job, run = make("fedavg", tmp_path / "run", secure=True, rounds=3, **private)
    execute(job, run, Recorder(), lambda job, note: remote_engine(job, tmp_path / "nodes", 4, spoil))
    lines = run.metrics()
    assert ["loss" in line for line in lines] == [True, False, True]
    assert [line["dropped"] for line in lines] == [0, 4, 0]
    assert lines[0]["epsilon"] < lines[1]["epsilon"] < lines[2]["epsilon"]


@pytest.mark.slow
@pytest.mark.parametrize("change", ["shape", "type", "name", "samples", "shares"])
def test_a_flawed_masked_reply_is_left_out_and_counted(tmp_path: Path, change: str) -> None:
    from tests.network.flawed_answers import changed, tensors_changed

    def spoil(node: str, content: bytes) -> bytes:
        if node != "node1" or decode_envelope(content)[0][0].kind != "train":
            return content
        if change == "samples":
            return changed(content, numbers={"samples": 10**9})
        flaws: dict[str, Any] = {
            "shape": lambda t: {**t, "masked": t["masked"][1:]},
            "type": lambda t: {**t, "masked": t["masked"].double()},
            "shares": lambda t: {**t, "shares": t["shares"][1:]},
            "name": lambda t: {"update": t["masked"], "shares": t["shares"]},
        }
        return tensors_changed(content, flaws[change])

    server, _, notes = secure_server(tmp_path, spoil, min_clients=2)
    record = server.run_round(1, nothing)
    assert (record.dropped, record.clients) == (1, 4)
    assert any("no reply of client" in note for note in notes)


@pytest.mark.slow
def test_a_masked_reply_holds_no_update_of_its_own(tmp_path: Path) -> None:
    """What leaves a node in a round is a vector that looks random, and its number of samples."""
    seen: list[Message] = []

    def look(node: str, content: bytes) -> bytes:
        seen.extend(decode_envelope(content)[0])
        return content

    server, _, _ = secure_server(tmp_path, look)
    server.run_round(1, nothing)
    replies = [message for message in seen if message.kind == "train"]
    assert len(replies) == 4
    for reply in replies:
        assert set(reply.tensors) == {"masked", "shares"}
        assert set(reply.numbers) == {"samples"}
        assert 0.49 < np.unpackbits(reply.tensors["masked"].numpy().view(np.uint8)).mean() < 0.51


@pytest.mark.slow
def test_a_node_that_agreed_on_secure_sends_nothing_else(tmp_path: Path) -> None:
    server, transport, _ = secure_server(tmp_path)
    node = transport.known["node0"]
    client = min(node.clients)
    request = server.build_request("train", 1)
    with pytest.raises(DataError, match="cannot be read"):
        node.handle(NodeRequest("run1", request, {"train": [client]}).to_bytes())
    assert isinstance(server.engine, engine_module.NetworkEngine)
    group = masking_group_for(server.engine, request, [0, 1, 2, 3], ["train"])
    other = replace(request, tensors={**request.tensors, "model": request.tensors["model"] + 1})
    with pytest.raises(DataError, match="not be bound"):
        node.handle(NodeRequest("run1", other, {"train": [client]}, group=group.to_json()).to_bytes())
    with pytest.raises(DataError, match="by a request of its own"):  # nor with a request for seeds beside it
        node.handle(NodeRequest("run1", other, {"unmask": [], "train": [client]}, group=group.to_json()).to_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("change", ["model", "group", "data"])
def test_two_answers_never_share_a_mask(tmp_path: Path, change: str) -> None:
    """Of a round one request is answered; the same again gets the same, and with other data none."""
    server, transport, _ = secure_server(tmp_path, participation=0.75)
    node, request = transport.known["node0"], server.build_request("train", 1)
    assert isinstance(server.engine, engine_module.NetworkEngine)
    group = masking_group_for(server.engine, request, [0, 1, 2], ["train"])

    def ask(request: Message, group: MaskingGroup) -> RingVector:
        payload = NodeRequest("run1", request, {"train": [0]}, {0: 0}, group.to_json()).to_bytes()
        node.last_answer = (b"", b"")  # as after a restart: the answer is made anew
        found: RingVector = decode_envelope(node.handle(payload)[2])[0][0].tensors["masked"].numpy().view(np.uint64)
        return found

    first = ask(request, group)
    assert np.array_equal(first, ask(request, group))
    if change == "data":  # the node has come back with other data in the middle of a round
        assert node.client_runtime is not None
        labels = node.client_runtime.job.federation.source.train.y
        labels.copy_(labels.flip(0))
        with pytest.raises(DataError, match="answered before with other numbers"):
            ask(request, group)
        return
    if change == "group":
        with pytest.raises(DataError, match="was answered for another request"):
            ask(request, masking_group_for(server.engine, request, [0, 1, 3], ["train"]))
        return
    other = replace(request, tensors={**request.tensors, "model": request.tensors["model"] + 1e-7})
    with pytest.raises(DataError, match="not be bound"):
        ask(other, group)
    with pytest.raises(DataError, match="not the agreed initial one"):
        ask(other, replace(group, context=mask_context("run1", other, group.keys, ["train"])))


@pytest.mark.parametrize(
    ("method", "part"), [("fedrane", "gne"), ("fednova", "fednova"), ("fedavg+ccvr", "ccvr"), ("apple", "apple")]
)
def test_methods_that_need_single_updates_are_refused_by_name(tmp_path: Path, method: str, part: str) -> None:
    job, _ = make("fedavg", tmp_path, secure=True)
    with pytest.raises(SettingError, match=re.escape(f"{part!r} of {method!r}")):
        check_secure_aggregation(job.settings, make_method(method, {}), 4)


def test_one_client_alone_is_never_the_minimum(tmp_path: Path) -> None:
    job, _ = make("fedavg", tmp_path, secure=True, min_clients=1)
    with pytest.raises(SettingError, match="use 2 or more"):
        check_secure_aggregation(job.settings, job.method, 4)


def test_one_client_per_round_is_refused(tmp_path: Path) -> None:
    """Its sum would be its update, so that no node would reveal its masks and the round would wait."""
    few, enough = (make("fedavg", tmp_path / str(p), secure=True, participation=p)[0] for p in (0.25, 0.5))
    with pytest.raises(SettingError, match=re.escape("participation = 0.25 of 4 clients is 1 a round")):
        check_secure_aggregation(few.settings, few.method, 4)
    check_secure_aggregation(enough.settings, enough.method, 4)
    with pytest.raises(SettingError, match="two clients"):
        check_secure_aggregation(enough.settings, enough.method, 1)


@pytest.mark.parametrize("update", [float("nan"), float("inf"), 1e30])
def test_a_reply_without_numbers_looks_like_any_other(tmp_path: Path, update: float) -> None:
    """Nothing in it says so but a one in the sum; models made for it asked a bit of the data in every round."""
    job, _ = make("fedavg", tmp_path / "run", secure=True)
    masker, other = (Masker(tmp_path / name, print) for name in ("keys", "others"))
    group = MaskingGroup({0: masker.public, 1: other.public}, "ab" * 32, (0, 1))
    size = job.roles.layout.size
    flat = torch.zeros(size)
    flat[3] = update
    replies = []
    for client, who, tensor in ((0, masker, flat), (1, other, torch.full((size,), 0.5))):
        plain = Message("train", 1, client, {"update": tensor}, {"samples": 5, "loss": 0.25})
        replies.append(masked_reply(job, f"run1-train-{client}", plain, group, who))
    assert [diverged for _, diverged in replies] == [True, False]
    first, second = (reply for reply, _ in replies)
    assert {name: tensor.shape for name, tensor in first.tensors.items()} == {
        name: tensor.shape for name, tensor in second.tensors.items()
    }
    assert first.numbers == second.numbers == {"samples": 5}
    vectors = {reply.unit: reply.tensors["masked"].numpy().view(np.uint64) for reply in (first, second)}
    total = unmask(vectors, {k: {"own": w.own_seed(k, group)} for k, w in ((0, masker), (1, other))})
    assert diverged_clients(total) == 1
    assert torch.equal(from_fixed_point(total[2:], 24), torch.full((size,), 2.5, dtype=torch.float64))
    assert float(from_fixed_point(total[:1], 24)) == 1.25


def spoilt_training(monkeypatch: pytest.MonkeyPatch, clients: Collection[int], rounds: Collection[int]) -> None:
    """Some clients' training gives NaN, in some rounds."""
    honest = ClientRuntime.train

    def train(self: ClientRuntime, request: Message, client: int) -> Message:
        reply = honest(self, request, client)
        if client not in clients or request.round not in rounds:
            return reply
        return replace(reply, tensors={name: tensor * float("nan") for name, tensor in reply.tensors.items()})

    monkeypatch.setattr(ClientRuntime, "train", train)


@pytest.mark.slow
def test_a_client_that_diverges_counts_as_no_change_and_keeps_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt_training(monkeypatch, [1], [2])
    server, transport, notes = secure_server(tmp_path)
    records = [server.run_round(number, nothing) for number in (1, 2, 3)]
    assert [record.dropped for record in records] == [0, 1, 0]
    assert sum("1 of 4 clients had no finite numbers" in note for note in notes) == 1
    total, sizes = (
        torch.zeros_like(server.state["scaffold/c"], dtype=torch.float64),
        server.job.federation.train.sizes(),
    )
    for client in range(4):
        node = transport.known[f"node{client}"].client_runtime
        assert node is not None
        state = node.job.store.load(client, 4)["scaffold/c"]
        total += state.double() * float(sizes[client]) / float(sizes.sum())
        assert node.job.store.has(client, 2) == (client != 1)
    assert torch.allclose(total, server.state["scaffold/c"].double(), atol=1e-5)


@pytest.mark.slow
def test_clients_that_diverge_cost_the_round_and_the_run_if_they_are_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt_training(monkeypatch, [1, 2], [1])
    server, _, notes = secure_server(tmp_path / "two")
    before = server.model.clone()
    assert server.run_round(1, nothing).dropped == 4
    assert torch.equal(server.model, before)
    assert any("2 of 4 clients gave no finite numbers" in note for note in notes)
    monkeypatch.undo()
    spoilt_training(monkeypatch, range(4), [1])
    server, _, _ = secure_server(tmp_path / "all")
    with pytest.raises(DivergedError, match="no client gives finite numbers"):
        server.run_round(1, nothing)
