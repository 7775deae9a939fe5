"""What an organiser with a program of its own asks of a node's entry point, and what it gets.

Every attack here succeeded once: docs/security-organiser.md has the figures. The organiser has all keys of the network
and sends what it likes; nodes are those of a federation, in this process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography")

from fedframe.core.client_runtime import ClientRuntime
from fedframe.core.job import Job
from fedframe.core.layout import named_tensors
from fedframe.core.message import Message
from fedframe.core.privacy import composed_epsilon
from fedframe.core.server import Server
from fedframe.errors import ProtocolError, RunError
from fedframe.methods.closed_form.head import closed_form
from fedframe.network.engine import NetworkEngine
from fedframe.network.envelope import decode_envelope
from fedframe.network.ledger import EpsilonLedger
from fedframe.network.masks import MaskingGroup, RingVector, from_fixed_point, mask_context, signature_holds, unmask
from fedframe.network.node import NodeRuntime
from fedframe.network.node_request import NodeRequest
from fedframe.network.secure_aggregation import bits_of, masking_group_for
from fedframe.util.files import read_json
from tests.helpers import nothing
from tests.network.in_process import InProcessTransport, clock, make, remote_engine

__all__ = ["clock"]
PRIVATE: dict[str, Any] = {
    "privacy_clip": 1.0, "privacy_noise": 1.0, "privacy_at": "node", "weighting": "uniform",
}  # fmt: skip
SECURE: dict[str, Any] = {"secure": True, "weighting": "uniform"}


class Organiser:
    """Asks nodes for whatever it likes; every request has a newer number than the last."""

    def __init__(self, folder: Path, clients: int = 3, method: str = "fedavg", **settings: Any) -> None:
        self.job, _ = make(method, folder / "run", clients=clients, **settings)
        self.engine = remote_engine(self.job, folder / "nodes", clients)
        assert isinstance(self.engine.transport, InProcessTransport)
        self.nodes = [self.engine.transport.known[f"node{i}"] for i in range(clients)]
        self.server = Server(self.job, self.engine, lambda text: None)
        self.number = 1 << 61

    def ask(
        self,
        client: int,
        request: Message,
        kinds: Sequence[str],
        group: MaskingGroup | None = None,
        run: str = "run1",
    ) -> Message:
        """The last reply of the answer."""
        self.number += 1
        described = group.to_json() if group is not None else None
        asked = NodeRequest(run, request, {kind: [client] for kind in kinds}, {}, described, self.number)
        return decode_envelope(self.nodes[client].handle(asked.to_bytes())[2])[0][-1]

    def restart(self, client: int) -> NodeRuntime:
        """A node whose process has ended and begun again: what it knows is on the disk."""
        old = self.nodes[client]
        self.nodes[client] = NodeRuntime(old.make_job, sorted(old.clients), None, old.make_masker, old.ledger)
        return self.nodes[client]

    def crafted(self, request: Message, favourite: int) -> Message:
        """A model that predicts one class whatever it sees."""
        flat = torch.zeros_like(request.tensors["model"])
        views = self.job.roles.layout.views(flat)
        bias = [name for name in views if views[name].shape == (10,)][-1]
        views[bias][favourite] = 40.0
        return replace(request, tensors={**request.tensors, "model": flat})


# -- unmasking ---------------------------------------------------------------------------------------------------------
def masked_round(organiser: Organiser) -> tuple[Message, MaskingGroup]:
    request = organiser.server.build_request("train", 1)
    group = masking_group_for(organiser.engine, request, range(len(organiser.nodes)), ["train"])
    for client in range(len(organiser.nodes)):
        organiser.ask(client, request, ["train"], group)
    return request, group


@pytest.mark.slow
@pytest.mark.parametrize("clients", [3, 4, 5])
def test_two_lists_of_survivors_unmask_nobody(tmp_path: Path, clients: int) -> None:
    """Some are told that the last client has gone, the last that all are there; signatures for both cannot be had."""
    organiser = Organiser(tmp_path, clients, min_clients=2, **SECURE)
    victim, everyone = clients - 1, tuple(range(clients))
    _, group = masked_round(organiser)
    lists = {client: everyone if client == victim else everyone[:-1] for client in everyone}
    if clients > 4:
        lists[0] = everyone  # the best division: as many as possible under each list
    signed: dict[tuple[int, ...], dict[int, str]] = {}
    for client, alive in lists.items():
        told = replace(group, alive=alive)
        reply = organiser.ask(client, Message("agree", 1), ["agree"], told)
        signed.setdefault(alive, {})[client] = str(reply.numbers["signature"])
        other = everyone[:-1] if alive == everyone and client != victim else everyone
        other = other if other != alive else everyone[1:]
        with pytest.raises(ProtocolError, match="another list of survivors"):  # the other list, too
            organiser.ask(client, Message("agree", 1), ["agree"], replace(group, alive=other))
    revealed = []
    for client in everyone:
        for alive, signatures in signed.items():
            for given in (signatures, {k: s for each in signed.values() for k, s in each.items()}):
                told = replace(group, alive=alive, signatures=given)
                try:
                    revealed.append((alive, set(organiser.ask(client, Message("unmask", 1), ["unmask"], told).tensors)))
                except ProtocolError:
                    continue
    assert len({alive for alive, _ in revealed}) <= 1  # never both what hides the victim and what hides it from others
    own = any(alive == everyone for alive, _ in revealed)
    pairs = any(f"pair/{victim}" in names for _, names in revealed)
    assert not (own and pairs)


@pytest.mark.slow
def test_a_forged_or_foreign_signature_does_not_count(tmp_path: Path) -> None:
    organiser = Organiser(tmp_path, 4, **SECURE)
    _, group = masked_round(organiser)
    told = replace(group, alive=(0, 1, 2, 3))
    mine = str(organiser.ask(0, Message("agree", 1), ["agree"], told).numbers["signature"])
    assert signature_holds(told, 0, mine)
    for signatures in ({}, {0: mine}, dict.fromkeys((0, 1, 2, 3), mine), {1: "00" * 64, 2: "11" * 64}):
        with pytest.raises(ProtocolError, match="at least 3 clients have signed"):
            organiser.ask(0, Message("unmask", 1), ["unmask"], replace(told, signatures=signatures))


def test_a_second_group_in_a_round_is_not_answered(tmp_path: Path) -> None:
    """The difference of two sums with and without a client is that client's update."""
    organiser = Organiser(tmp_path, 4, participation=0.75, **SECURE)
    request = organiser.server.build_request("train", 1)
    first, second = (
        masking_group_for(organiser.engine, request, clients, ["train"]) for clients in ([0, 1, 2], [0, 1, 3])
    )
    organiser.ask(0, request, ["train"], first)
    organiser.restart(0)
    with pytest.raises(ProtocolError, match="was answered for another request"):
        organiser.ask(0, request, ["train"], second)


def test_a_group_is_as_large_as_agreed_and_of_members(tmp_path: Path) -> None:
    """Among two, the other of whom is the organiser's friend, a client would be read from the sum."""
    organiser = Organiser(tmp_path, 4, **SECURE)
    request = organiser.server.build_request("train", 1)
    small = masking_group_for(organiser.engine, request, [0, 1], ["train"])
    with pytest.raises(ProtocolError, match="by the agreement it is 4"):
        organiser.ask(0, request, ["train"], small)
    keys = {**{i: organiser.engine.keys[i] for i in range(3)}, 7: organiser.engine.keys[3]}
    foreign = MaskingGroup(keys, mask_context("run1", request, keys, ["train"]))
    with pytest.raises(ProtocolError, match="not a member"):
        organiser.ask(0, request, ["train"], foreign)


def unmasked_sum(
    organiser: Organiser, request: Message, kinds: list[str], alive: Sequence[int], run: str = "run1"
) -> RingVector:
    """What an organiser finds that says that the others have gone."""
    everyone = range(len(organiser.nodes))
    organiser.engine.run_name = run
    group = masking_group_for(organiser.engine, request, everyone, kinds)
    masked = {
        client: organiser.ask(client, request, kinds, group, run).tensors["masked"].numpy().view(np.uint64)
        for client in everyone
    }
    told, signatures = replace(group, alive=tuple(alive)), {}
    for client in alive:
        reply = organiser.ask(client, Message("agree", request.round), ["agree"], told, run)
        signatures[client] = str(reply.numbers["signature"])
    told, seeds = replace(told, signatures=signatures), {}
    for client in alive:
        reply = organiser.ask(client, Message("unmask", request.round), ["unmask"], told, run)
        found = {name: tensor.numpy().tobytes() for name, tensor in reply.tensors.items()}
        seeds[client] = {name: seed for name, seed in found.items() if not name.startswith("shares/")}
    return unmask({client: masked[client] for client in alive}, seeds)


def difference_of_two_rounds(organiser: Organiser) -> float:
    """One model in two rounds, the last member said to be away in the second; the error of its update, relative."""
    first = organiser.server.build_request("train", 1)
    second = replace(organiser.server.build_request("train", 2), tensors=first.tensors)
    size, victim = len(first.tensors["model"]), len(organiser.nodes) - 1
    whole = unmasked_sum(organiser, first, ["train"], range(victim + 1))
    rest = unmasked_sum(organiser, second, ["client", "train"], range(victim))
    bits = bits_of(organiser.job, "weighted")
    found = from_fixed_point(whole[-size:], bits) - from_fixed_point(rest[-size:], bits)
    update = ClientRuntime(organiser.job).perform(first, victim).tensors["update"].double()
    return float((found - update).norm() / update.norm())


@pytest.mark.slow
def test_two_rounds_tell_an_update_unless_all_must_be_in_every_sum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What docs/secure-aggregation.md says of it is so, in both directions; and nodes say who is left out.

    All is what holds where nobody asks for less.
    """
    whole_data = {"epochs": 1, "batch": 1000, **SECURE}
    assert difference_of_two_rounds(Organiser(tmp_path / "some", 4, min_clients=2, **whole_data)) < 1e-5
    assert capsys.readouterr().out.count("train of round 2 is added up without 3: the organiser says it is away") == 3
    with pytest.raises(ProtocolError, match="at least 4 clients"):
        difference_of_two_rounds(Organiser(tmp_path / "all", 4, **whole_data))


@pytest.mark.slow
def test_a_request_brings_no_scale(tmp_path: Path) -> None:
    """31 scales told the largest entry of an update by what overflowed; it is a constant of the protocol now."""
    organiser = Organiser(tmp_path, **SECURE)
    request = organiser.server.build_request("train", 1)
    group = masking_group_for(organiser.engine, request, range(3), ["train"])
    answers = []
    for scale in (1e-30, 1.0, 1e30):
        organiser.number += 1
        described = {**group.to_json(), "scale": scale}
        asked = NodeRequest("run1", request, {"train": [0]}, {}, described, organiser.number)
        answers.append(organiser.nodes[0].handle(asked.to_bytes())[2])
        organiser.restart(0)
    assert len(set(answers)) == 1


def test_under_secure_no_score_of_one_client_leaves(tmp_path: Path) -> None:
    organiser = Organiser(tmp_path, **SECURE)
    request = organiser.server.build_request("client", 2)
    with pytest.raises(ProtocolError, match="cannot be read"):  # no group, no answer
        organiser.ask(0, request, ["client"])
    group = masking_group_for(organiser.engine, request, range(3), ["client"])
    assert set(organiser.ask(0, request, ["client"], group).tensors) == {"masked", "shares"}


# -- losses, counts and crafted models ---------------------------------------------------------------------------------
def test_under_privacy_at_the_node_no_figure_leaves(tmp_path: Path) -> None:
    """Losses and hits gave exact counts of classes, with an epsilon promised."""
    organiser = Organiser(tmp_path, **PRIVATE)
    reply = organiser.ask(0, organiser.server.build_request("train", 1), ["train"])
    assert (set(reply.tensors), dict(reply.numbers)) == ({"update"}, {"samples": 1})
    for kind in ("client", "own", "measure"):
        with pytest.raises(ProtocolError, match=r"no work of this agreement|not asked in round"):
            organiser.ask(0, organiser.server.build_request(kind, 2), [kind])
    last = organiser.server.build_request("personalise", organiser.job.settings.rounds + 1)
    reply = organiser.ask(0, last, ["personalise"])
    assert not reply.tensors
    assert not reply.numbers
    hello = organiser.ask(0, Message("hello", 0), ["hello"])
    assert (hello.numbers["train"], hello.numbers["test"]) == (1, 0)


def test_under_privacy_at_the_node_training_that_goes_wrong_is_not_told(tmp_path: Path) -> None:
    """Whether an update has NaN depends on the data, too: it leaves as noise around zero."""
    organiser = Organiser(tmp_path, lr=1e30, **PRIVATE)
    reply = organiser.ask(0, organiser.server.build_request("train", 1), ["train"])
    update = reply.tensors["update"]
    assert bool(torch.isfinite(update).all())
    assert 0.9 < float(update.norm()) / len(update) ** 0.5 < 1.1


@pytest.mark.parametrize("private", [False, True])
def test_crafted_models_and_rates_are_not_answered(tmp_path: Path, private: bool) -> None:
    organiser = Organiser(tmp_path, **(PRIVATE if private else {}))
    request = organiser.server.build_request("train", 1)
    with pytest.raises(ProtocolError, match="not the agreed initial one"):
        organiser.ask(0, organiser.crafted(request, 3), ["train"])
    for lr in (0.0, float(request.numbers["lr"]) + 1e-7):
        with pytest.raises(ProtocolError, match="learning rate of round 1 is agreed"):
            organiser.ask(0, replace(request, numbers={"lr": lr}), ["train"])
    with pytest.raises(ProtocolError, match="which no request has"):
        organiser.ask(0, replace(request, numbers={**request.numbers, "steps": 1}), ["train"])


@pytest.mark.slow
def test_one_scoring_per_round_and_rounds_in_order(tmp_path: Path) -> None:
    """Ten models in a round gave the test data's classes; now there is one answer for each round that was agreed."""
    organiser = Organiser(tmp_path, rounds=3, step_bound=0)
    organiser.server.run_round(1, nothing)
    answered = 0
    for round in (2, 3, 4):
        request = organiser.server.build_request("client", round)
        for favourite in range(10):
            try:
                organiser.ask(0, organiser.crafted(request, favourite), ["client"])
                answered += 1
            except ProtocolError:
                organiser.restart(0)
    assert answered == 3  # 30 were asked for
    for round in (5, 0, -1):
        with pytest.raises(ProtocolError, match="none of this run"):
            organiser.ask(0, organiser.server.build_request("client", round), ["client"])
    with pytest.raises(ProtocolError, match="Rounds come in order"):
        organiser.ask(0, organiser.server.build_request("train", 2), ["train"])
    with pytest.raises(ProtocolError, match="not asked in round 4 of 3"):
        organiser.ask(0, organiser.server.build_request("train", 4), ["train"])


def test_what_is_answered_stays_answered_over_restarts(tmp_path: Path) -> None:
    organiser = Organiser(tmp_path, step_bound=0)
    request = organiser.server.build_request("train", 1)
    first = organiser.ask(0, request, ["train"])
    organiser.restart(0)
    assert torch.equal(first.tensors["update"], organiser.ask(0, request, ["train"]).tensors["update"])
    later = replace(organiser.server.build_request("train", 2), tensors=request.tensors)
    organiser.ask(0, later, ["train"])
    organiser.restart(0)
    with pytest.raises(ProtocolError, match="was answered for another request"):
        organiser.ask(0, replace(later, tensors={"model": later.tensors["model"] + 1}), ["train"])


def test_a_round_has_one_model_for_all_work(tmp_path: Path) -> None:
    """A crafted model for the scores and an honest one for the training would go unnoticed."""
    organiser = Organiser(tmp_path, step_bound=0)
    organiser.server.run_round(1, nothing)
    honest = organiser.server.build_request("train", 2)
    organiser.ask(0, organiser.crafted(organiser.server.build_request("client", 2), 3), ["client"])
    with pytest.raises(ProtocolError, match="a round has one, for all work"):
        organiser.ask(0, honest, ["train"])
    organiser.ask(1, honest, ["client", "train"])


def test_the_end_of_a_run_is_told_once_and_after_its_rounds(tmp_path: Path) -> None:
    """A node that tells what it gains scored any model that came with a greeting, as often as it was asked."""
    organiser = Organiser(tmp_path, rounds=1, step_bound=0)
    scored: list[torch.Tensor] = []

    def finish(job: Job, request: Message) -> dict[str, float]:
        scored.append(request.tensors["model"])
        return {"gain_value": 0.5}

    organiser.nodes[0].on_finished = finish
    train, end = (organiser.server.build_request(kind, round) for kind, round in (("train", 1), ("end", 2)))
    train, end = (replace(each, numbers={**each.numbers, "last": 1}) for each in (train, end))
    for favourite in range(3):
        for kind, request in (("hello", end), ("agree", end), ("train", train)):
            asked = organiser.crafted(request, favourite) if kind != "train" else request
            with pytest.raises(ProtocolError, match="comes after its rounds"):
                organiser.ask(0, replace(asked, kind=kind), [kind])
    assert not scored
    for _ in range(2):  # an organiser that was killed asks again
        assert organiser.ask(0, end, ["end"]).numbers["gain_value"] == 0.5
        organiser.restart(0).on_finished = finish
    with pytest.raises(ProtocolError, match="last of round 2 was answered for another request"):
        organiser.ask(0, organiser.crafted(end, 3), ["end"])


def test_what_is_fixed_in_training_is_the_agreed_one_in_the_first_round(tmp_path: Path) -> None:
    """All of a frozen net could come with the first request."""
    organiser = Organiser(tmp_path, method="fedetf")
    request = organiser.server.build_request("train", 1)
    fixed = named_tensors(organiser.job.template)
    name = organiser.job.roles.fixed[0]
    same, other = (
        replace(request, tensors={**request.tensors, f"fixed/{name}": fixed[name].detach() + change})
        for change in (0, 1)
    )
    with pytest.raises(ProtocolError, match="not the agreed initial one"):
        organiser.ask(0, other, ["train"])
    organiser.ask(0, same, ["train"])


def test_a_node_is_in_as_many_runs_as_its_people_want(tmp_path: Path) -> None:
    """Every new run has its rounds: without a limit an organiser begins as many as it likes."""
    organiser = Organiser(tmp_path)
    organiser.nodes[0].most_runs = 2
    request = organiser.server.build_request("train", 1)
    for run in ("a", "b", "a"):
        organiser.ask(0, request, ["train"], run=run)
    with pytest.raises(ProtocolError, match="2 runs at most"):
        organiser.ask(0, request, ["train"], run="c")
    organiser.ask(0, Message("hello", 0), ["hello"], run="c")  # who it is costs nothing


# -- noise -------------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_noise_cannot_be_averaged_away(tmp_path: Path) -> None:
    """1,500 answers to requests that differed by 1e-7 had noise of their own each; now a round has one answer."""
    organiser = Organiser(tmp_path, rounds=5, **PRIVATE)
    request = organiser.server.build_request("train", 1)
    first, answers = organiser.ask(0, request, ["train"]), set()
    for attempt in range(20):
        changed = replace(request, tensors={"model": request.tensors["model"] + 1e-7 * attempt})
        if attempt % 5 == 0:
            organiser.restart(0)
        try:
            answers.add(organiser.ask(0, changed, ["train"]).tensors["update"].numpy().tobytes())
        except ProtocolError:
            continue
    assert answers == {first.tensors["update"].numpy().tobytes()}


@pytest.mark.slow
def test_noise_of_two_runs_does_not_cancel_in_the_difference_of_their_sums(tmp_path: Path) -> None:
    """Every one of five adds a share of .58, so that four others' are the whole; a single share was left."""
    pytest.importorskip("dp_accounting")
    organiser = Organiser(tmp_path, 5, **PRIVATE, secure=True, min_clients=2)
    request = organiser.server.build_request("train", 1)
    size, bits = len(request.tensors["model"]), bits_of(organiser.job, "weighted")
    whole, rest = (
        from_fixed_point(unmasked_sum(organiser, request, ["train"], range(count), run)[-size:], bits)
        for count, run in ((5, "a"), (4, "b"))
    )
    deviation = float((whole - rest).norm()) / size**0.5  # the update itself is no longer than 1 in all
    assert deviation > 1
    assert deviation == pytest.approx(3**-0.5 * 9**0.5, rel=0.1)  # its own share, and twice those of four others


def test_a_private_answer_is_the_same_or_none(tmp_path: Path) -> None:
    """A node that comes back with other data would add other noise to nearly the same update."""
    organiser = Organiser(tmp_path, **PRIVATE)
    request = organiser.server.build_request("train", 1)
    organiser.ask(0, request, ["train"])
    node = organiser.restart(0)
    labels = node.runtime_for("run1").job.federation.source.train.y
    labels.copy_(labels.flip(0))
    with pytest.raises(ProtocolError, match="answered before with other numbers"):
        organiser.ask(0, request, ["train"])


def test_the_ledger_counts_all_runs_and_refuses_beyond_its_limit(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    from fedframe.core.privacy import epsilon

    one, two, three = (epsilon(1.0, 1e-5, rounds, 3, 3, False) for rounds in (1, 2, 3))
    ledger = EpsilonLedger(tmp_path / "ledger.jsonl", (two + three) / 2)
    organiser = Organiser(tmp_path, **PRIVATE)
    organiser.nodes[0].ledger = ledger
    request = organiser.server.build_request("train", 1)
    organiser.ask(0, request, ["train"])
    assert ledger.spent(1e-5) == pytest.approx(one)
    organiser.restart(0)
    organiser.ask(0, request, ["train"])  # the same once more costs nothing
    assert ledger.spent(1e-5) == pytest.approx(one)
    organiser.ask(0, request, ["train"], run="another")
    organiser.restart(0)
    with pytest.raises(ProtocolError, match="own limit of privacy is reached"):
        organiser.ask(0, request, ["train"], run="third")
    again = EpsilonLedger(tmp_path / "ledger.jsonl", ledger.limit)  # it is on the disk, not in the process
    assert again.spent(1e-5) == pytest.approx(two)
    assert "2 of" not in again.describe(1e-5)
    assert f"epsilon {two:.3g} of {ledger.limit:g}" in again.describe(1e-5)


def test_a_larger_delta_buys_no_more(tmp_path: Path) -> None:
    """An agreement with delta = 0.5 would have made every epsilon small, and the limit of the node none."""
    pytest.importorskip("dp_accounting")
    limit = 1.01 * composed_epsilon(((1.0, 2),), 1e-5)
    ledger = EpsilonLedger(tmp_path / "ledger.jsonl", limit)
    ledger.spend("a", 1.0, 1e-5)
    ledger.spend("b", 1.0, 0.5)
    with pytest.raises(ProtocolError, match="own limit of privacy is reached"):
        ledger.spend("c", 1.0, 0.5)
    assert ledger.spent(0.5) == pytest.approx(limit / 1.01)
    assert "for delta 1e-05" in ledger.describe(0.5)


@pytest.mark.parametrize("secure", [False, True])
def test_a_private_release_leaves_with_its_noise_and_is_in_the_ledger(tmp_path: Path, secure: bool) -> None:
    """It did not leave at all, and nothing counted it: an organiser could have had one in every run."""
    pytest.importorskip("dp_accounting")
    organiser = Organiser(tmp_path, method="analytic", rounds=0, secure=secure, **PRIVATE)
    limit = 1.01 * composed_epsilon(((1.0, 2),), organiser.job.settings.privacy_delta)
    ledgers = [EpsilonLedger(tmp_path / f"{i}.jsonl", limit) for i in range(3)]
    for node, ledger in zip(organiser.nodes, ledgers, strict=True):
        node.ledger, node.client_runtime = ledger, None  # as a node begins
    organiser.server.conclude(nothing)
    assert float(closed_form(organiser.server.net()).weight.abs().max()) > 0
    assert [len(ledger.events()) for ledger in ledgers] == [1, 1, 1]
    request = organiser.server.build_request("statistics", 1)
    keys = organiser.engine.keys

    def group(run: str) -> MaskingGroup | None:
        return MaskingGroup(keys, mask_context(run, request, keys, ["statistics"])) if secure else None

    reply = organiser.ask(0, request, ["statistics"], group("another"), run="another")
    assert reply.numbers == {"samples": 1}
    with pytest.raises(ProtocolError, match="own limit of privacy is reached"):
        organiser.ask(0, request, ["statistics"], group("third"), run="third")


@pytest.mark.parametrize("privacy_at", ["node", "server"])
def test_a_private_release_is_as_long_as_agreed_whatever_the_request_says(tmp_path: Path, privacy_at: str) -> None:
    """Scale and length of the features came with the request: a million times as large, no noise hid anything."""
    pytest.importorskip("dp_accounting")
    organiser = Organiser(tmp_path, method="analytic", rounds=0, **{**PRIVATE, "privacy_at": privacy_at})
    organiser.server.conclude(nothing)
    honest = organiser.server.build_request("statistics", 1)
    name = "fixed/extras.analytic"
    size = len(honest.tensors[f"{name}.inverse"])
    assert bool(honest.tensors[f"{name}.bounded"])
    wishes = {"bounded": torch.zeros(()), "inverse": torch.full((size,), 1e6), "mean": torch.full((size,), -3.0)}
    crafted = replace(
        honest, tensors={**honest.tensors, **{f"{name}.{what}": tensor for what, tensor in wishes.items()}}
    )
    wanted = organiser.ask(0, honest, ["statistics"], run="another").tensors
    found = organiser.ask(0, crafted, ["statistics"], run="third").tensors
    assert all(torch.equal(found[each], wanted[each]) for each in wanted)
    with pytest.raises(ProtocolError, match="was answered for another request"):  # the ledger has one
        organiser.ask(0, replace(crafted, tensors=honest.tensors), ["statistics"], run="third")


def test_releases_that_hide_samples_are_said_to(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    ledger = EpsilonLedger(tmp_path / "ledger.jsonl")
    ledger.spend("a", 1.0, 1e-5)
    assert "samples" not in ledger.describe(1e-5)
    ledger.spend("b", 1.0, 1e-5, "samples")
    assert "for each of your samples" in ledger.describe(1e-5)


def test_no_answer_leaves_if_the_disk_does_not_take_it_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    organiser = Organiser(tmp_path, **PRIVATE)
    organiser.nodes[0].ledger = EpsilonLedger(tmp_path / "ledger.jsonl")

    def full(path: Path, record: Mapping[str, Any]) -> None:
        raise RunError("Could not write: no space left on device")

    monkeypatch.setattr("fedframe.network.ledger.append_record", full)
    with pytest.raises(RunError, match="no space"):
        organiser.ask(0, organiser.server.build_request("train", 1), ["train"])


# -- what stays possible -----------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, SECURE, PRIVATE], ids=["plain", "secure", "private"])
def test_honest_rounds_are_answered_and_cost_the_messages_that_they_must(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    organiser = Organiser(tmp_path, rounds=2, **settings)
    transport, sent = organiser.engine.transport, []
    assert isinstance(organiser.engine, NetworkEngine)
    assert isinstance(transport, InProcessTransport)
    for number in (1, 2):
        before = len(transport.sent)
        assert organiser.server.run_round(number, nothing).dropped == 0
        organiser.server.round = number
        organiser.engine.evaluation.resume(organiser.server)
        sent.append(len(transport.sent) - before)
    assert sent == [9, 9] if settings is SECURE else sent == [3, 3]
    if settings is SECURE:
        assert read_json(next((tmp_path / "nodes" / "keys-node0" / "signed").iterdir()))["alive"] == [0, 1, 2]
