"""One member that poisons, over a network: a huge update, a huge claim, and the same under secure aggregation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography")

import fedframe.network.secure_aggregation as secure_aggregation
from fedframe.core.message import Message
from fedframe.core.reply_limits import most_samples
from fedframe.core.server import Server
from fedframe.errors import RunError
from fedframe.network.compatibility import check_claimed_samples
from fedframe.network.envelope import decode_envelope
from fedframe.network.node_data import federation_without_data, form_of
from tests.helpers import equal_states, nothing
from tests.network.flawed_answers import server_with, tensors_changed, with_number
from tests.network.in_process import clock, make, remote_engine

__all__ = ["clock"]


def times(factor: float) -> Any:
    def change(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {**tensors, "update": tensors["update"] * factor}

    return change


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1e30, -1e4])
def test_huge_finite_update_is_dropped_and_counted_as_if_its_member_were_away(tmp_path: Path, factor: float) -> None:
    servers = []
    for name in ("huge", "away"):

        def spoil(node: str, content: bytes, name: str = name) -> bytes | str:
            if node != "node1" or decode_envelope(content)[0][0].kind != "train":
                return content
            return tensors_changed(content, times(factor)) if name == "huge" else "not there"

        server, transport = server_with(tmp_path / name, spoil, method="fedavg")
        for round in (1, 2, 3):
            assert server.run_round(round, nothing).dropped == 1
            server.round = round
        servers.append((server, transport.notes))
    (huge, notes), (away, _) = servers
    assert sum("was dropped: the norm of its update" in note for note in notes) == 3
    assert equal_states(huge.tensors(), away.tensors())


class Seen:
    """Keeps the replies that are merged."""

    def __init__(self) -> None:
        self.replies: list[Message] = []

    def begin(self, *_: object) -> None:
        return

    def on_reply(self, reply: Message) -> None:
        self.replies.append(reply)

    def end(self, *_: object) -> None:
        return


def claimed_federation(job: Any, claim: int) -> Any:
    """The job as an organiser has it whose second member claims so many samples."""
    sizes = job.federation.train.sizes().tolist()
    sizes[1] = claim
    form, names = form_of(job.federation.source), [str(name) for name in job.federation.names]
    return replace(job, federation=federation_without_data(form, names, sizes, [0] * len(sizes), None))


def test_member_that_claims_a_thousand_million_samples_counts_for_ten_times_the_median(tmp_path: Path) -> None:
    job, _ = make("fedavg", tmp_path / "run")
    claim = 10**9

    def spoil(node: str, content: bytes) -> bytes:
        training = node == "node1" and decode_envelope(content)[0][0].kind == "train"
        return with_number(content, "samples", str(claim)) if training else content

    engine = remote_engine(job, tmp_path / "nodes", 4, spoil)
    engine.job = claimed_federation(job, claim)
    notes: list[str] = []
    seen = Seen()
    server = Server(engine.job, engine, notes.append, [seen])
    start = server.model.double()
    record = server.run_round(1, nothing)
    assert (record.dropped, record.figures["samples_bounded"]) == (0, 1)
    sizes = engine.job.federation.train.sizes()
    most = 10 * float(np.median(sizes.numpy()))
    weights = [min(float(reply.numbers["samples"]), most) for reply in seen.replies]
    assert max(weights) == most == most_samples(sizes, 10.0)
    mean = sum(w * r.tensors["update"].double() for w, r in zip(weights, seen.replies, strict=True)) / sum(weights)
    torch.testing.assert_close(server.model.double(), start + mean, atol=1e-6, rtol=0)
    assert any("says that it has 1,000,000,000 samples and counts for" in note for note in notes)


def test_secure_sum_with_a_claim_out_of_bounds_is_refused_with_the_reason(tmp_path: Path) -> None:
    job, _ = make("fedavg", tmp_path / "run", secure=True)
    check_claimed_samples(job)
    with pytest.raises(RunError, match=r"says that it has 1,000,000,000 samples.*use weighting = uniform"):
        check_claimed_samples(claimed_federation(job, 10**9))
    for settings in ({"weighting": "uniform"}, {"samples_bound": 0}):
        other, _ = make("fedavg", tmp_path / str(settings), secure=True, **settings)
        check_claimed_samples(claimed_federation(other, 10**9))


@pytest.mark.slow
@pytest.mark.parametrize("bad", [1, 2])
def test_secure_sum_out_of_proportion_costs_the_round_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: int
) -> None:
    """In the first round, too, of which there is no last one to compare with."""
    original = secure_aggregation.summed_reply

    def spoilt(job: Any, request: Message, *rest: Any) -> Message:
        total = original(job, request, *rest)
        return replace(total, tensors=times(1e6)(total.tensors)) if request.round == bad else total

    monkeypatch.setattr(secure_aggregation, "summed_reply", spoilt)
    job, _ = make("fedavg", tmp_path / "run", secure=True)
    notes: list[str] = []
    server = Server(job, remote_engine(job, tmp_path / "nodes", 4), notes.append)
    dropped = []
    for round in (1, 2, 3):
        before = server.model
        dropped.append(server.run_round(round, nothing).dropped)
        server.round = round
        assert torch.equal(server.model, before) == (round == bad)
    assert dropped == [4 * (round == bad) for round in (1, 2, 3)]
    assert any("the reply of the clients' sum was dropped" in note for note in notes)
    assert any(f"Round {bad} is given up" in note for note in notes)


@pytest.mark.parametrize("factor", [-95.0, 25.0])
def test_update_just_within_its_bound_does_not_make_nodes_refuse_the_next_model(tmp_path: Path, factor: float) -> None:
    """One of three members sent 95 medians: the mean moved 32 times as far as the others' updates; they let 30 pass.

    It is dropped, and 25 medians are within what both let pass.
    """

    def spoil(node: str, content: bytes) -> bytes:
        training = node == "node1" and decode_envelope(content)[0][0].kind == "train"
        return tensors_changed(content, times(factor)) if training else content

    job, _ = make("fedavg", tmp_path / "run", clients=3, partition="iid", weighting="uniform", epochs=1)
    engine = remote_engine(job, tmp_path / "nodes", 3, spoil)
    notes: list[str] = []
    engine.notify = notes.append
    server = Server(job, engine, notes.append)
    for round in (1, 2):
        assert server.run_round(round, nothing).dropped == (factor == -95.0)
        server.round = round
    assert not [note for note in notes if "has moved by" in note]
