"""Messages as bytes between organisations: written plainly, read with suspicion.

A letter is one safetensors block: a JSON head (what each message is, its plain numbers, and notes of the sender), and
the tensors of all its messages as raw bytes behind it. Nothing in it is code. The reader looks at sizes before it
reads, at names, types and shapes before it makes a tensor, and gives one sentence for whatever is wrong.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import safetensors
import safetensors.torch
import torch

from fedframe.core.message import Message, Number
from fedframe.errors import ProtocolError
from fedframe.util.files import tensors_to_bytes

MOST_HEAD = 4 << 20  # bytes of names, shapes and numbers
MOST_BYTES = 4 << 30  # of a whole letter, where nobody knows better
MOST_TEXT = 1000  # characters of one text
MOST_NUMBER = 2**63  # whole numbers stay below: a larger one overflows whatever is reckoned with it
TYPES = {"F32", "F64", "I32", "I64", "U8", "BOOL"}  # of tensors, in safetensors' words
FIELDS = {"kind": str, "round": int, "unit": int, "numbers": dict}  # of a message's head


def encode_envelope(messages: Sequence[Message], notes: Mapping[str, Any]) -> bytes:
    """All messages and the sender's notes in one block."""
    tensors = {f"{i}/{name}": tensor for i, message in enumerate(messages) for name, tensor in message.tensors.items()}
    heads = [message.checked().head() for message in messages]
    return tensors_to_bytes(tensors, {"messages": heads, "notes": dict(notes)})


def decode_envelope(content: bytes, most: int = MOST_BYTES) -> tuple[list[Message], dict[str, Any]]:
    """The messages and notes of a letter; whatever is not one is refused."""
    if len(content) > most:
        raise ProtocolError(f"A letter of {len(content):,} bytes is larger than the {most:,} that are allowed.")
    head = read_head(content)
    described = [read_message_head(each) for each in head["messages"]]
    try:
        # Clones start on 64-byte lines, as in the sender's memory: kernels then round alike.
        found = {name: tensor.clone() for name, tensor in safetensors.torch.load(content).items()}
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        raise refusal(str(error)[:200]) from error
    sorted_out: dict[str, dict[str, torch.Tensor]] = {str(number): {} for number in range(len(described))}
    for name, tensor in found.items():
        number, _, rest = name.partition("/")
        if number not in sorted_out or not rest:
            raise refusal(f"the tensor {name[:80]!r} belongs to no message")
        sorted_out[number][rest] = tensor
    return [Message(tensors=t, **h) for h, t in zip(described, sorted_out.values(), strict=True)], head["notes"]


def read_head(content: bytes) -> dict[str, Any]:
    """What the letter says of itself, before any tensor is made."""
    length = int.from_bytes(content[:8], "little") if len(content) >= 8 else -1
    if not 2 <= length <= min(MOST_HEAD, len(content) - 8):
        raise refusal("its head is missing, cut off or too long")
    head: dict[str, Any]
    try:
        header = json.loads(content[8 : 8 + length])
        head = json.loads(header["__metadata__"]["fedframe"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise refusal("its head cannot be read") from error
    for name, entry in header.items():
        if name != "__metadata__" and (not isinstance(entry, dict) or str(entry.get("dtype")) not in TYPES):
            raise refusal(f"the tensor {name[:80]!r} is of a type that is not sent")
    fine = isinstance(head, dict) and isinstance(head.get("messages"), list) and isinstance(head.get("notes"), dict)
    if not fine:
        raise refusal("its head has no messages or no notes")
    return head


def read_message_head(head: object) -> dict[str, Any]:
    """Kind, round, unit and numbers of one message, of exactly the right types."""
    if not isinstance(head, dict) or set(head) != set(FIELDS):
        raise refusal("a message in it lacks its kind, round, unit or numbers")
    for name, kind in FIELDS.items():
        if type(head[name]) is not kind:
            raise refusal(f"the {name} of a message is a {type(head[name]).__name__}")
        if kind is not dict and not plain(head[name]):
            raise refusal(f"the {name} of a message is too large or cannot be printed")
    for name, number in head["numbers"].items():
        if not plain(number):
            raise refusal(f"{name[:80]!r} of a message is not a plain finite number or short text")
    return head


def plain(number: object) -> bool:
    """Whether it is a whole number of 64 bits, a finite number or a short text that can be printed."""
    if type(number) is str:
        return len(number) <= MOST_TEXT and number.isprintable()
    if type(number) is int:
        return -MOST_NUMBER < number < MOST_NUMBER
    return type(number) is float and math.isfinite(number)


def refusal(reason: str) -> ProtocolError:
    """What to say of bytes that are no letter."""
    return ProtocolError(f"This is not a Fedframe letter: {reason}.")


def whole(numbers: Mapping[str, Number], name: str) -> int:
    """A whole number that a message must have."""
    value = numbers.get(name)
    if type(value) is not int:
        raise ProtocolError(f"A message has {name} = {str(value)[:80]!r}, not a whole number.")
    return value
