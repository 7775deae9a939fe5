"""What a single reply can do: counts are bounded, updates out of proportion dropped, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedframe.core.engine import Engine
from fedframe.core.job import Job
from fedframe.core.message import Message
from fedframe.core.reply_limits import WINDOW, most_samples
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import DivergedError, SettingError
from fedframe.settings import check
from tests.helpers import blobs, make_job, nothing

Spoil = Callable[[Message], Message]


class Meddler(Engine):
    """An engine whose training replies are changed on the way; tensors are lent, as workers lend theirs."""

    def __init__(self, job: Job, spoil: Spoil) -> None:
        self.engine, self.spoil = InlineEngine(job), spoil

    def run(self, request: Message, units: Sequence[int]) -> Iterator[Message]:
        for reply in self.engine.run(request, units):
            if request.kind != "train":
                yield reply
                continue
            spoilt = self.spoil(reply)
            lent = {name: tensor.clone() for name, tensor in spoilt.tensors.items()}
            yield replace(spoilt, tensors=lent)
            for tensor in lent.values():
                tensor.fill_(float("nan"))


def scaled(factor: float, *clients: int) -> Spoil:
    """Some clients send a multiple of their update."""

    def spoil(reply: Message) -> Message:
        if reply.unit not in clients:
            return reply
        return replace(reply, tensors={**reply.tensors, "update": reply.tensors["update"] * factor})

    return spoil


def claiming(samples: int, *clients: int) -> Spoil:
    """Some clients claim to have so many samples."""

    def spoil(reply: Message) -> Message:
        return replace(reply, numbers={**reply.numbers, "samples": samples}) if reply.unit in clients else reply

    return spoil


def rounds(server: Server, count: int) -> list[int]:
    """Run some rounds; how many replies each has dropped."""
    dropped = []
    for round in range(server.round + 1, server.round + 1 + count):
        dropped.append(server.run_round(round, nothing).dropped)
        server.round = round
    return dropped


# -- updates -----------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("clients", [4, WINDOW, WINDOW + 5])
def test_bound_that_drops_nothing_changes_no_bit(tmp_path: Path, clients: int) -> None:
    models = []
    for bound in (0.0, 100.0):
        job = make_job(tmp_path / str(bound), blobs(clients=clients), update_bound=bound, epochs=1)
        server = Server(job, Meddler(job, lambda reply: reply), nothing)
        assert rounds(server, 3) == [0, 0, 0]
        models.append(server.model)
    assert torch.equal(*models)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1e30, -1e6])
@pytest.mark.parametrize("clients", [5, WINDOW + 5])
def test_huge_finite_update_is_dropped_counted_and_said_and_the_run_goes_on(
    tmp_path: Path, factor: float, clients: int
) -> None:
    job = make_job(tmp_path, blobs(clients=clients), epochs=1)
    notes: list[str] = []
    server = Server(job, Meddler(job, scaled(factor, 0, clients - 1)), notes.append)
    assert rounds(server, 3) == [2, 2, 2]
    assert sum("was dropped: the norm of its update is" in note for note in notes) == 6
    assert "is usual: far too large (update_bound = 100, step_bound = 30)" in notes[0]

    plain = Server(job, InlineEngine(job), nothing)
    honest = list(range(1, clients - 1))
    plain.select_clients = lambda round: job.largest_first(torch.tensor(honest).numpy())  # type: ignore[method-assign]
    rounds(plain, 3)
    assert torch.equal(server.model, plain.model)


def test_without_a_bound_the_same_update_ends_the_run(tmp_path: Path) -> None:
    job = make_job(tmp_path, update_bound=0)
    server = Server(job, Meddler(job, scaled(1e30, 1)), nothing)
    with pytest.raises(DivergedError):
        rounds(server, 3)


def test_bound_is_a_setting(tmp_path: Path) -> None:
    for bound, dropped in ((100, 0), (20, 1)):
        job = make_job(tmp_path / str(bound), update_bound=bound)
        assert rounds(Server(job, Meddler(job, scaled(50.0, 2)), nothing), 2) == [dropped] * 2


def test_round_in_which_all_updates_are_long_is_merged(tmp_path: Path) -> None:
    """Beside the round before all are out of proportion, beside each other none is."""
    job = make_job(tmp_path, blobs(clients=5), update_bound=100)
    now = {"factor": 1.0}
    server = Server(job, Meddler(job, lambda reply: scaled(now["factor"], *range(5))(reply)), nothing)
    assert rounds(server, 1) == [0]
    now["factor"] = 300.0
    assert rounds(server, 1) == [0]


def test_two_clients_are_judged_by_the_round_before(tmp_path: Path) -> None:
    """The first round cannot tell which of two is out of proportion; a resumed run knows it as the whole run does."""
    job = make_job(tmp_path, blobs(clients=2))
    first = Server(job, Meddler(job, scaled(1.0)), nothing)
    assert rounds(first, 1) == [0]
    again = Server(job, Meddler(job, scaled(1e6, 1)), nothing)
    again.restore(first.tensors(), 1)
    assert rounds(again, 2) == [1, 1]
    old = {name: tensor for name, tensor in first.tensors().items() if not name.startswith("limits/")}
    forgotten = Server(job, Meddler(job, scaled(1e6, 1)), nothing)
    forgotten.restore(old, 1)  # a checkpoint of an earlier version: as in a first round
    assert rounds(forgotten, 1) == [0]


@pytest.mark.slow
def test_many_huge_updates_do_not_become_usual_by_coming_first(tmp_path: Path) -> None:
    """After a first round, more than are held back come before the honest ones, and are dropped all the same."""
    clients, bad = 3 * WINDOW, range(WINDOW + 4)
    job = make_job(tmp_path, blobs(clients=clients, each=8), local_test=0.0)
    now = {"factor": 1.0}
    server = Server(job, Meddler(job, lambda reply: scaled(now["factor"], *bad)(reply)), nothing)
    assert rounds(server, 1) == [0]
    assert server.select_clients(2)[: len(bad)] == [*bad]
    now["factor"] = 1e20
    assert rounds(server, 1) == [len(bad)]


def test_updates_of_zero_are_no_measure(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    assert rounds(Server(job, Meddler(job, scaled(0.0, 0, 1, 2)), nothing), 2) == [0, 0]


def test_huge_upload_is_dropped_too(tmp_path: Path) -> None:
    def spoil(reply: Message) -> Message:
        if reply.unit != 1:
            return reply
        return replace(reply, tensors={name: t if name == "update" else t + 1e30 for name, t in reply.tensors.items()})

    job = make_job(tmp_path, method="scaffold")
    notes: list[str] = []
    assert rounds(Server(job, Meddler(job, spoil), notes.append), 2) == [1, 1]
    assert "the norm of its scaffold/" in notes[0]


# -- samples -----------------------------------------------------------------------------------------------------------
def test_client_that_claims_a_thousand_million_samples_counts_for_ten_times_the_median(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    notes: list[str] = []
    server = Server(job, Meddler(job, claiming(10**9, 1)), notes.append)
    start = server.model.double()
    record = server.run_round(1, nothing)
    assert record.figures["samples_bounded"] == 1
    sizes = job.federation.train.sizes().double()
    weights = sizes.clone()
    weights[1] = 10 * sizes.median()
    honest = Server(job, InlineEngine(job), nothing)
    replies = {r.unit: r for r in honest.engine.run(honest.build_request("train", 1), range(4))}
    mean = sum(weights[unit] * r.tensors["update"].double() for unit, r in replies.items()) / weights.sum()
    torch.testing.assert_close(server.model, (start + mean).float(), atol=1e-7, rtol=0)
    assert [note for note in notes if "samples_bound = 10 times the median" in note] == notes[:1]
    server.run_round(2, nothing)
    assert len(notes) == 1  # said once


def test_samples_of_all_are_bounded_as_the_rounds_are(tmp_path: Path) -> None:
    data = blobs(clients=4, each=60)
    data["user_train"] = torch.tensor([0] * 228 + [1] * 4 + [2] * 4 + [3] * 4).numpy()
    job = make_job(tmp_path, data, local_test=0.0)
    assert Server(job, InlineEngine(job), nothing).weight_of_all == 40 + 12
    unbounded = make_job(tmp_path, data, local_test=0.0, samples_bound=0)
    assert Server(unbounded, InlineEngine(unbounded), nothing).weight_of_all == 240


@pytest.mark.slow
@given(st.lists(st.integers(1, 10**6), min_size=3, max_size=30), st.integers(10**7, 10**9))
def test_no_claim_moves_the_bound_beyond_the_others_sizes(sizes: list[int], claim: int) -> None:
    bounded = most_samples(torch.tensor([*sizes, claim]), 10.0)
    assert bounded <= 10 * max(sizes)
    assert most_samples(torch.tensor(sizes), 1.0) <= max(sizes)


@pytest.mark.parametrize("name", ["samples_bound", "update_bound"])
@pytest.mark.parametrize("value", [-1, 0.5, float("inf"), "much"])
def test_bad_bound_is_refused_in_one_sentence(name: str, value: Any) -> None:
    with pytest.raises(SettingError, match=rf"^{name} = [^\n]*\.$"):
        check({name: value})
