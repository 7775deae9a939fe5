"""Letters: what is written is read back bit for bit, and whatever else arrives is refused in one sentence."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedframe.core.message import Message, validate_reply
from fedframe.errors import DataError
from fedframe.network.envelope import MAX_HEAD_BYTES, decode_envelope, encode_envelope
from fedframe.util.files import tensors_to_bytes

HEAD = {"kind": "train", "round": 1, "unit": 0, "numbers": {}}


def envelope(heads: object, tensors: dict[str, torch.Tensor] | None = None, notes: object = None) -> bytes:
    """An envelope with any head."""
    return tensors_to_bytes(tensors or {}, {"messages": heads, "notes": {} if notes is None else notes})


def with_header(content: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """An envelope whose tensors are described otherwise."""
    length = struct.unpack("<Q", content[:8])[0]
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    change(header)
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + content[8 + length :]


def reshaped(shape: object) -> bytes:
    """An envelope with an empty tensor of any shape."""
    return with_header(envelope([HEAD], {"0/h": torch.zeros(0)}), lambda header: header["0/h"].update(shape=shape))


def test_an_envelope_is_read_back_bit_for_bit() -> None:
    odd = torch.tensor([0.1, -0.0, 1e-45, 3e38])
    messages = [
        Message("train", 3, 7, {"update": odd, "x/y": torch.eye(3, dtype=torch.float64)}, {"loss": 0.1, "name": "é"}),
        Message("own", 3, 8, {"hits": torch.tensor(5), "none": torch.empty(0, 4)}, {"samples": 2**40}),
    ]
    found, notes = decode_envelope(encode_envelope(messages, {"run": "r", "tasks": {"train": [7]}}))
    assert notes == {"run": "r", "tasks": {"train": [7]}}
    for before, after in zip(messages, found, strict=True):
        assert before.head() == after.head()
        assert before.tensors.keys() == after.tensors.keys()
        for name, tensor in before.tensors.items():
            assert after.tensors[name].dtype == tensor.dtype
            assert after.tensors[name].numpy().tobytes() == tensor.numpy().tobytes()
            assert after.tensors[name].shape == tensor.shape


@pytest.mark.parametrize(
    "content",
    [
        b"", b"hello", b"\x80\x04", struct.pack("<Q", 10**12) + b"{}",
        struct.pack("<Q", MAX_HEAD_BYTES + 1) + b" " * 100,
        struct.pack("<Q", 2) + b"{}", struct.pack("<Q", 4) + b"null", struct.pack("<Q", 2) + b"[]",
        envelope(None), envelope([None]), envelope([{}]), envelope([{**HEAD, "more": 1}]), envelope([HEAD], notes=[1]),
        envelope([{**HEAD, "round": True}]), envelope([{**HEAD, "round": 1.0}]), envelope([{**HEAD, "kind": 3}]),
        envelope([{**HEAD, "numbers": {"loss": float("nan")}}]), envelope([{**HEAD, "numbers": {"loss": None}}]),
        envelope([{**HEAD, "numbers": {"loss": [1]}}]), envelope([{**HEAD, "numbers": {"loss": "x" * 20_000}}]),
        envelope([HEAD], {"1/update": torch.zeros(2)}), envelope([HEAD], {"update": torch.zeros(2)}),
        envelope([HEAD], {"0/": torch.zeros(2)}), envelope([HEAD], {"0/h": torch.zeros(2, dtype=torch.bfloat16)}),
        envelope([HEAD], {"0/h": torch.zeros(2)})[:-1], envelope([HEAD], {"0/h": torch.zeros(2)}) + b"x",
        envelope([{**HEAD, "numbers": {"samples": 10**400}}]), envelope([{**HEAD, "numbers": {"samples": -(2**63)}}]),
        envelope([{**HEAD, "round": 2**63}]), envelope([{**HEAD, "unit": 10**400}]),
        envelope([{**HEAD, "kind": "\ud800"}]),
        envelope([{**HEAD, "numbers": {"version": "\x1b[2J"}}]), envelope([{**HEAD, "numbers": {"version": "a\nb"}}]),
        envelope([HEAD], {"1" * 5000 + "/h": torch.zeros(2)}), envelope([HEAD], {"00/h": torch.zeros(2)}),
        reshaped([0, 2**40, 2**40]), reshaped([0, 2**62, 2**62]), reshaped([0, 2**63]), reshaped([0, 2**64]),
        reshaped([-1, 2]), reshaped([1.5]), reshaped("2"), reshaped(None),
    ],
)  # fmt: skip
def test_what_is_no_envelope_is_refused(content: bytes) -> None:
    with pytest.raises(DataError):
        decode_envelope(content)


def test_an_envelope_beyond_the_limit_is_refused_unread() -> None:
    content = encode_envelope([Message("train", 1, 0, {"update": torch.zeros(1000)})], {})
    with pytest.raises(DataError, match="larger than the 100"):
        decode_envelope(content, max_bytes=100)


def test_a_head_that_claims_more_than_there_is_costs_nothing() -> None:
    claim = {"shape": [10**12], "data_offsets": [0, 4 * 10**12]}
    content = with_header(envelope([HEAD], {"0/h": torch.zeros(2)}), lambda header: header["0/h"].update(claim))
    with pytest.raises(DataError):
        decode_envelope(content)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_envelope_is_refused_or_still_an_envelope(data: st.DataObject) -> None:
    """Whatever is changed in it, reading ends in messages or in our own error, never in another."""
    content = bytearray(
        encode_envelope([Message("train", 1, 0, {"update": torch.ones(4)}, {"loss": 0.5})], {"run": "r"})
    )
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        messages, notes = decode_envelope(bytes(content))
    except DataError:
        return
    assert len(messages) == 1
    assert isinstance(notes, dict)


# What JSON can say: values that a head may hold, and those that it must not.
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(10**400), 10**400), st.floats(), st.text(),
    st.integers(4000, 6000).map(lambda count: "1" * count), st.sampled_from([2**63, -(2**63), 2**40, 10**400]),
)  # fmt: skip
VALUES = st.recursive(ODD, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4))
INDICES = st.text("0123456789", min_size=1, max_size=5000)
PLACES = [
    ("0/update", "shape"), ("0/update", "dtype"), ("0/update", "data_offsets"), ("0/update",), ("__metadata__",),
    ("messages",), ("messages", 0), ("messages", 0, "kind"), ("messages", 0, "round"), ("messages", 0, "unit"),
    ("messages", 0, "numbers"), ("messages", 0, "numbers", "loss"), ("messages", 0, "numbers", "samples"), ("notes",),
]  # fmt: skip


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=3),
    st.none() | st.text(min_size=1) | INDICES.map(lambda index: f"{index}/update"),
)
def test_a_head_of_any_json_is_refused_or_can_be_reckoned_with(
    changes: list[tuple[tuple[Any, ...], Any]], name: str | None
) -> None:
    content = encode_envelope(
        [Message("train", 1, 0, {"update": torch.ones(4)}, {"loss": 0.5, "samples": 3})], {"run": "r"}
    )

    def change(header: dict[str, Any]) -> None:
        inner = json.loads(header["__metadata__"]["fedframe"])
        for place, value in changes:
            where: Any = inner if place[0] in inner else header
            try:
                for step in place[:-1]:
                    where = where[step]
                where[place[-1]] = value
            except (KeyError, TypeError, IndexError):  # an earlier change has taken the place away
                continue
        if isinstance(header.get("__metadata__"), dict):
            header["__metadata__"]["fedframe"] = json.dumps(inner)
        if name is not None:
            header[name] = header.pop("0/update")

    try:
        messages, notes = decode_envelope(with_header(content, change))
    except DataError:
        return
    assert isinstance(notes, dict)
    request = Message("train", 1)
    for message in messages:
        for number in message.numbers.values():
            float(number) if not isinstance(number, str) else number.encode()
        validate_reply(message, request, {"update": torch.Size([4])})  # ends in a sentence or in None
