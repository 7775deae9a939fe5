from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedframe.core.message import Message, all_finite, validate_reply
from fedframe.errors import DataError

ORDER = Message("train", 3)
EXPECTED = {"update": torch.Size([4])}
GOOD = Message("train", 3, 7, {"update": torch.ones(4)}, {"samples": 5, "loss": 0.1})


def test_message_survives_the_wire() -> None:
    message = Message("train", 2, 9, {"a": torch.randn(2, 3), "b": torch.arange(4)}, {"lr": 0.1, "n": 3, "set": "test"})
    back = Message.from_bytes(message.to_bytes())
    assert back.head() == message.head()
    assert torch.equal(back.tensors["a"], message.tensors["a"])
    assert torch.equal(back.tensors["b"], message.tensors["b"])
    assert back.nbytes == message.nbytes == 2 * 3 * 4 + 4 * 8


@given(st.binary(max_size=200))
def test_what_is_no_message_is_refused(content: bytes) -> None:
    with pytest.raises(DataError, match="not a Fedframe message"):
        Message.from_bytes(content)


def test_good_reply_has_no_flaw() -> None:
    assert validate_reply(GOOD, ORDER, EXPECTED) is None


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (replace(GOOD, tensors={"update": torch.tensor([1.0, float("nan"), 0, 0])}), "NaN"),
        (replace(GOOD, tensors={"update": torch.tensor([1.0, float("inf"), 0, 0])}), "infinite"),
        (replace(GOOD, tensors={"update": torch.ones(5)}), r"\(5,\)"),
        (replace(GOOD, tensors={"update": torch.ones(4, dtype=torch.int64)}), "int64"),
        (replace(GOOD, tensors={}), "missing"),
        (replace(GOOD, tensors={**GOOD.tensors, "spy": torch.ones(1)}), "spy"),
        (replace(GOOD, round=2), "round 2"),
        (replace(GOOD, kind="score"), "score"),
        (replace(GOOD, numbers={"samples": 0}), "samples"),
        (replace(GOOD, numbers={}), "samples"),
    ],
)
def test_flawed_reply_is_refused_with_the_reason(reply: Message, why: str) -> None:
    found = validate_reply(reply, ORDER, EXPECTED)
    assert found is not None

    assert re.search(why, found)


@pytest.mark.slow
@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_all_finite_agrees_with_looking_at_each_value(values: list[float]) -> None:
    tensor = torch.tensor(values)
    assert all_finite(tensor) == bool(torch.isfinite(tensor).all())


def test_all_finite_is_not_fooled_by_an_overflowing_sum() -> None:
    assert all_finite(torch.full((10,), 3e38))
