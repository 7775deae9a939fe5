"""Requests that are well-formed envelopes and hold anything, at a node's entry point: a sentence, or agreed work.

An organiser with a program of its own sends these. Plain nodes and nodes with secure aggregation are asked; about 600
requests, from a fixed seed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography")

from fedframe.core.message import Message
from fedframe.errors import FedframeError
from fedframe.network.envelope import decode_envelope, encode_envelope
from fedframe.network.node_request import KINDS, NodeRequest
from fedframe.network.secure_aggregation import masking_group_for
from tests.fuzz.test_fuzz import FUZZ, ODD, REFUSED, attempt
from tests.network.in_process import clock
from tests.network.test_cheating_organiser import SECURE, Organiser

__all__ = ["clock"]
pytestmark = pytest.mark.slow
ROUNDS = st.sampled_from([1, 1, 2, 3, 4]) | st.integers(-3, 10**12)
TYPES = st.sampled_from([torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.float16])


@st.composite
def hostile(draw: st.DrawFn, organiser: Organiser) -> tuple[int, bytes]:
    """A client, and a request to it: an honest one with some of its entries replaced."""
    kinds: list[str] = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3, unique=True))
    honest = organiser.server.build_request(draw(st.sampled_from(KINDS)), 1)
    tensors: dict[str, Any] = dict(honest.tensors)
    way = draw(st.sampled_from(["as it is", "type", "shape", "values", "gone", "more"]))
    size = len(tensors["model"])
    if way == "type":
        tensors["model"] = torch.zeros(size).to(draw(TYPES))
    elif way == "shape":
        tensors["model"] = torch.zeros(draw(st.lists(st.integers(0, 3), max_size=3)))
    elif way == "values":
        tensors["model"] = torch.full((size,), draw(st.floats(width=32)))
    elif way == "gone":
        del tensors["model"]
    elif way == "more":
        names = ("fixed/head.weight", "fixed/x", "0/1", "1/0", "\u2028", "seen", "")
        tensors[draw(st.sampled_from(names) | st.text(max_size=8))] = torch.zeros(
            draw(st.integers(0, 70)), dtype=draw(TYPES)
        )
    numbers = dict(honest.numbers)
    for name in draw(st.lists(st.sampled_from(["lr", "last", "stage", "samples", "x"]), max_size=2)):
        numbers[name] = draw(st.integers(-3, 10**20) | st.floats() | st.text(max_size=5))
    request = replace(honest, round=draw(ROUNDS), tensors=tensors, numbers=numbers)
    group: Any = None
    with_group: bool = draw(st.booleans())
    if with_group and organiser.engine.keys:
        summed: list[str] = draw(st.lists(st.sampled_from(kinds), max_size=2))
        group = masking_group_for(organiser.engine, request, [0, 1, 2], summed).to_json()
        if draw(st.booleans()):
            group["alive"] = [0, 1, 2]
        if draw(st.booleans()):
            group[draw(st.sampled_from([*group]))] = draw(ODD)
        if draw(st.booleans()):
            small = "00" * 64
            group["keys"] = draw(
                st.dictionaries(st.sampled_from("0123-"), st.sampled_from([small, "11" * 64, organiser.engine.keys[0]]))
            )
    client = draw(st.integers(0, 2))
    organiser.number += 1
    run = draw(st.sampled_from(["run1", "run1", "run1", "run2", "", "../x", "a" * 65]))
    tasks = {kind: draw(st.just([client]) | st.lists(st.integers(-1, 3), max_size=3)) for kind in kinds}
    seen = draw(st.just({}) | st.dictionaries(st.integers(0, 3), st.integers(0, 10**12), max_size=2))
    if draw(st.booleans()):
        return client, NodeRequest(run, request, tasks, seen, group, organiser.number).to_bytes()
    notes = {"run": run, "tasks": tasks, "seen": {}, "number": organiser.number, "circle": draw(ODD)}
    return client, encode_envelope([request], notes)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "secure"])
def test_whatever_an_organiser_asks_a_node_answers_in_a_sentence_or_with_agreed_work(
    tmp_path_factory: pytest.TempPathFactory, secure: bool
) -> None:
    organiser = Organiser(tmp_path_factory.mktemp("hostile"), rounds=3, epochs=1, **(SECURE if secure else {}))
    answered, allowed = (
        0,
        {"masked", "shares"} if secure else {"update", "hits", "samples", "tally/shared", "tally/personal"},
    )

    @settings(max_examples=300, **FUZZ)
    @given(st.data())
    def attack(data: st.DataObject) -> None:
        nonlocal answered
        try:
            client, content = data.draw(hostile(organiser))
        except (ValueError, OverflowError, FedframeError):  # no envelope holds that
            return
        found = attempt(lambda: organiser.nodes[client].handle(content)[2])
        if found is REFUSED:
            return
        answered += 1
        for reply in decode_envelope(found)[0]:
            if reply.kind in ("train", "client", "own", "measure"):
                assert set(reply.tensors) <= allowed, reply.kind

    attack()
    assert answered > 3
    honest = organiser.ask(0, Message("hello", 0), ["hello"])  # none of it has broken the node
    assert int(honest.numbers["train"]) > 0
