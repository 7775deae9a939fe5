"""How far a shared model may move, as a node sees it: crafted ones are refused, and no method's own steps are."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("cryptography")

from fedframe.core.message import Message
from fedframe.core.part import ON_SERVER, overrides
from fedframe.core.server import Server
from fedframe.errors import ProtocolError
from fedframe.methods.parts import PARTS
from fedframe.methods.parts.fedopt import Adaptive, FedAdagrad, FedAdam, FedYogi
from fedframe.network.secure_aggregation import masking_group_for
from fedframe.network.step_bound import merging_parts, unbounded
from tests.helpers import nothing
from tests.network.in_process import clock, make, remote_engine
from tests.network.test_cheating_organiser import SECURE, Organiser

__all__ = ["clock"]
# Parts whose doing on the server has no bound that follows from clients' updates; docs/security-organiser.md says why.
NO_BOUND = {"apple", "attack", "fedaws", "fedmtl", "fltrust", "ratioloss"}


def trained_once(organiser: Organiser) -> Message:
    """A first round at node 0; the request of the second, with the first model."""
    organiser.ask(0, organiser.server.build_request("train", 1), ["train"])
    return organiser.server.build_request("train", 2)


def test_a_crafted_model_in_place_of_the_merged_one_is_refused_and_said(tmp_path: Path) -> None:
    organiser = Organiser(tmp_path)
    second = trained_once(organiser)
    for kinds in (["client"], ["client", "train"]):
        with pytest.raises(ProtocolError, match=r"shared model has moved by .* since round 1; .* step_bound = 30"):
            organiser.ask(0, organiser.crafted(second, 3), kinds)
    organiser.restart(0)  # what it knows is on the disk
    with pytest.raises(ProtocolError, match="shared model has moved by"):
        organiser.ask(0, organiser.crafted(second, 3), ["train"])
    assert organiser.ask(0, second, ["train"]).tensors


def test_who_is_asked_for_no_training_at_first_knows_how_long_an_update_is_all_the_same(tmp_path: Path) -> None:
    """An organiser that leaves the first round out got any model answered in the second."""
    organiser = Organiser(tmp_path)
    second = organiser.server.build_request("train", 2)
    with pytest.raises(ProtocolError, match="shared model has moved by"):
        organiser.ask(0, organiser.crafted(second, 3), ["train"])
    admission = organiser.nodes[0].admission
    assert admission is not None
    size = admission.longest([0])["update"]
    assert not [*admission.job.folder.glob("trial*")]
    update = organiser.ask(1, organiser.server.build_request("train", 1), ["train"]).tensors["update"]
    assert 0.2 < size / float(update.norm()) < 5
    assert organiser.ask(0, second, ["train"]).tensors


def test_the_model_that_ends_a_run_is_bounded_too(tmp_path: Path) -> None:
    """Nodes keep it, and may tell what they gain by it."""
    organiser = Organiser(tmp_path, rounds=1)
    organiser.ask(0, organiser.server.build_request("train", 1), ["train"])
    last = organiser.server.build_request("end", 2)
    last = replace(last, numbers={**last.numbers, "last": 1})
    with pytest.raises(ProtocolError, match="shared model has moved by"):
        organiser.ask(0, organiser.crafted(last, 3), ["end"])
    organiser.ask(0, last, ["end"])


def test_room_does_not_grow_with_what_crafted_models_make_of_the_own_update(tmp_path: Path) -> None:
    """A model within the bound that makes the node's own update huge would buy the next one any room."""
    organiser = Organiser(tmp_path)
    trained_once(organiser)
    admission = organiser.nodes[0].admission
    assert admission is not None
    (before,) = admission.longest([0]).values()
    size = organiser.job.roles.layout.size
    admission.trained(0, Message("train", 2, 0, {"update": torch.full((size,), 1e6)}))
    assert admission.longest([0])["update"] == pytest.approx(2 * before)
    admission.trained(0, Message("train", 2, 0, {"update": torch.full((size,), math.nan)}))
    assert admission.longest([0])["update"] == pytest.approx(2 * before)


def test_the_last_model_of_rounds_is_bounded_and_what_a_stage_makes_is_not(tmp_path: Path) -> None:
    for method, refused in (("fedavg", True), ("spherefed", False)):
        organiser = Organiser(tmp_path / method, method=method, rounds=1)
        organiser.ask(0, organiser.server.build_request("train", 1), ["train"])
        model = organiser.server.build_request("client", 2)
        far = replace(model, tensors={**model.tensors, "model": model.tensors["model"] + 10})
        if refused:
            with pytest.raises(ProtocolError, match="shared model has moved by"):
                organiser.ask(0, far, ["client"])
        else:
            assert organiser.ask(0, far, ["client"]).tensors


def test_a_variate_cannot_move_the_model_at_the_node(tmp_path: Path) -> None:
    """SCAFFOLD adds c to every gradient: with a chosen one the second step is from any model that one likes."""
    organiser = Organiser(tmp_path, method="scaffold")
    first = organiser.server.build_request("train", 1)
    chosen = {"scaffold/c": torch.full_like(first.tensors["scaffold/c"], 5.0)}
    with pytest.raises(ProtocolError, match="scaffold/c is not what it begins with"):
        organiser.ask(0, replace(first, tensors={**first.tensors, **chosen}), ["train"])
    second = trained_once(organiser)
    with pytest.raises(ProtocolError, match="scaffold/c has moved by"):
        organiser.ask(0, replace(second, tensors={**second.tensors, **chosen}), ["train"])


@pytest.mark.parametrize("odd", [torch.zeros(3), torch.zeros(3, dtype=torch.int64), torch.zeros(())])
def test_a_variate_of_another_form_is_a_sentence(tmp_path: Path, odd: torch.Tensor) -> None:
    organiser = Organiser(tmp_path, method="scaffold")
    second = trained_once(organiser)
    with pytest.raises(ProtocolError, match=r"scaffold/c is of .*fits nothing"):
        organiser.ask(0, replace(second, tensors={**second.tensors, "scaffold/c": odd}), ["train"])


def test_what_is_frozen_stays_as_agreed_in_every_round(tmp_path: Path) -> None:
    organiser = Organiser(tmp_path, method="spherefed")
    second = trained_once(organiser)
    head = organiser.server.tensor("head.weight")
    with pytest.raises(ProtocolError, match=r"head\.weight is not moved in rounds by this method"):
        organiser.ask(0, replace(second, tensors={**second.tensors, "fixed/head.weight": 9 * head}), ["train"])
    other = replace(second, tensors={**second.tensors, "fixed/head.weight": head.clone()})
    assert organiser.ask(0, other, ["train"]).tensors


def test_under_secure_the_same_holds(tmp_path: Path) -> None:
    """The own update is measured before it is masked."""
    organiser = Organiser(tmp_path, **SECURE)
    for round, refused in ((1, False), (2, True)):
        request = organiser.server.build_request("train", round)
        request = organiser.crafted(request, 3) if refused else request
        kinds = ["train"] if round == 1 else ["client", "train"]
        group = masking_group_for(organiser.engine, request, range(3), kinds)
        if refused:
            with pytest.raises(ProtocolError, match="shared model has moved by"):
                organiser.ask(0, request, kinds, group)
        else:
            organiser.ask(0, request, kinds, group)


@pytest.mark.parametrize("bound", [0, 1e6])
def test_a_larger_bound_can_be_agreed_on(tmp_path: Path, bound: float) -> None:
    organiser = Organiser(tmp_path, step_bound=bound)
    assert organiser.ask(0, organiser.crafted(trained_once(organiser), 3), ["train"]).tensors


# -- what parts say of themselves --------------------------------------------------------------------------------------
def test_every_built_in_part_that_acts_on_the_server_says_how_far_or_is_named_in_the_manual() -> None:
    silent = {
        name
        for name, kind in PARTS.items()
        if any(overrides(kind, hook) for hook in ON_SERVER) and not overrides(kind, "furthest")
    }
    assert silent | {"fltrust"} == NO_BOUND
    told = Path("docs/security-organiser.md").read_text().lower()
    for name in NO_BOUND - {"attack"}:  # which simulates members that cheat
        assert name in told


@pytest.mark.parametrize(("settings", "part"), [({"length": "radius"}, "gne"), ({"length": "sum"}, None)])
def test_a_step_whose_length_has_nothing_to_do_with_updates_is_not_bounded(
    tmp_path: Path, settings: dict[str, Any], part: str | None
) -> None:
    job, _ = make("fedavg+gne", tmp_path, set={"gne": settings})
    assert unbounded(job.method, job) == ([part] if part else [])


@pytest.mark.parametrize("kind", [FedAdagrad, FedAdam, FedYogi])
@pytest.mark.parametrize("beta2", [0.3, 0.9, 0.99])
def test_adaptive_steps_stay_within_what_they_say(tmp_path: Path, kind: type[Adaptive], beta2: float) -> None:
    """Updates that make a step as long as possible: quiet rounds with tiny steps, then growing ones of one sign."""
    part = kind(lr=0.1, tau=1e-9) if kind is FedAdagrad else kind(lr=0.1, tau=1e-9, beta2=beta2)  # type: ignore[call-arg]
    job, _ = make("fedavg", tmp_path)
    size = job.roles.layout.trainable
    m, v = part.moments
    state = {str(m): torch.zeros(size, dtype=torch.float64), str(v): torch.full((size,), 1e-18, dtype=torch.float64)}
    largest = 0.0
    for round in range(1, 40):
        update = torch.full((size,), 1.05**round if round > 20 else 1e-6, dtype=torch.float64)
        step = float(part.move(update, state).norm())
        said = part.furthest({"update": float(update.norm())}, round, job)
        assert said is not None
        assert step <= said["model"] * (1 + 1e-9)
        largest = max(largest, step / said["model"])
    assert largest > 0.2  # and it says not much more


METHODS = ["scaffold", "fedadam", "fedexp", "fedgloss", "fednh", "fedavg_etf"]
SMALL: dict[str, Any] = {
    "partition": "dirichlet:0.1", "clients": 3, "data_share": 0.1, "rounds": 2, "epochs": 1, "min_client_size": 3,
    "personal": False, "step_bound": 10, "model": "mlp:12",
}  # fmt: skip


@pytest.mark.slow
def test_honest_rounds_are_far_within_the_bound(tmp_path: Path) -> None:
    """With the methods that go farther than the mean, and a third of the factor that is agreed on by default."""
    for method in METHODS:
        job, _ = make(method, tmp_path / method, **SMALL)
        assert not unbounded(job.method, job)
        assert merging_parts(job.method)
        engine = remote_engine(job, tmp_path / f"nodes-{method}", 3)
        notes: list[str] = []
        engine.notify = notes.append
        server = Server(job, engine, notes.append)
        for round in (1, 2):
            assert server.run_round(round, nothing).dropped == 0, (method, notes)
            server.round = round
        server.conclude(nothing)
        assert not [note for note in notes if "moved" in note or "agreed" in note], (method, notes)
