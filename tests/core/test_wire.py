"""Letters: what is written is read back bit for bit, and whatever else arrives is refused in one sentence."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedframe.core.files import tensors_to_bytes
from fedframe.core.message import Message
from fedframe.core.wire import MOST_HEAD, read_letter, write_letter
from fedframe.errors import DataError

HEAD = {"kind": "train", "round": 1, "unit": 0, "numbers": {}}


def letter(heads: object, tensors: dict[str, torch.Tensor] | None = None, notes: object = None) -> bytes:
    """A letter with any head."""
    return tensors_to_bytes(tensors or {}, {"messages": heads, "notes": {} if notes is None else notes})


def test_a_letter_is_read_back_bit_for_bit() -> None:
    odd = torch.tensor([0.1, -0.0, 1e-45, 3e38])
    messages = [
        Message("train", 3, 7, {"update": odd, "x/y": torch.eye(3, dtype=torch.float64)}, {"loss": 0.1, "name": "é"}),
        Message("own", 3, 8, {"hits": torch.tensor(5), "none": torch.empty(0, 4)}, {"samples": 2**40}),
    ]
    found, notes = read_letter(write_letter(messages, {"run": "r", "tasks": {"train": [7]}}))
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
        b"", b"hello", b"\x80\x04", struct.pack("<Q", 10**12) + b"{}", struct.pack("<Q", MOST_HEAD + 1) + b" " * 100,
        struct.pack("<Q", 2) + b"{}", struct.pack("<Q", 4) + b"null", struct.pack("<Q", 2) + b"[]",
        letter(None), letter([None]), letter([{}]), letter([{**HEAD, "more": 1}]), letter([HEAD], notes=[1]),
        letter([{**HEAD, "round": True}]), letter([{**HEAD, "round": 1.0}]), letter([{**HEAD, "kind": 3}]),
        letter([{**HEAD, "numbers": {"loss": float("nan")}}]), letter([{**HEAD, "numbers": {"loss": None}}]),
        letter([{**HEAD, "numbers": {"loss": [1]}}]), letter([{**HEAD, "numbers": {"loss": "x" * 20_000}}]),
        letter([HEAD], {"1/update": torch.zeros(2)}), letter([HEAD], {"update": torch.zeros(2)}),
        letter([HEAD], {"0/": torch.zeros(2)}), letter([HEAD], {"0/h": torch.zeros(2, dtype=torch.bfloat16)}),
        letter([HEAD], {"0/h": torch.zeros(2)})[:-1], letter([HEAD], {"0/h": torch.zeros(2)}) + b"x",
    ],
)  # fmt: skip
def test_what_is_no_letter_is_refused(content: bytes) -> None:
    with pytest.raises(DataError):
        read_letter(content)


def test_a_letter_beyond_the_limit_is_refused_unread() -> None:
    content = write_letter([Message("train", 1, 0, {"update": torch.zeros(1000)})], {})
    with pytest.raises(DataError, match="larger than the 100"):
        read_letter(content, most=100)


def test_a_head_that_claims_more_than_there_is_costs_nothing() -> None:
    content = letter([HEAD], {"0/h": torch.zeros(2)})
    length = struct.unpack("<Q", content[:8])[0]
    header: dict[str, Any] = json.loads(content[8 : 8 + length])
    header["0/h"] |= {"shape": [10**12], "data_offsets": [0, 4 * 10**12]}
    head = json.dumps(header).encode()
    with pytest.raises(DataError):
        read_letter(struct.pack("<Q", len(head)) + head + bytes(8))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_letter_is_refused_or_still_a_letter(data: st.DataObject) -> None:
    """Whatever is changed in it, reading ends in messages or in our own error, never in another."""
    content = bytearray(write_letter([Message("train", 1, 0, {"update": torch.ones(4)}, {"loss": 0.5})], {"run": "r"}))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        messages, notes = read_letter(bytes(content))
    except DataError:
        return
    assert len(messages) == 1
    assert isinstance(notes, dict)
