"""Messages as bytes between organisations: written plainly, read with suspicion.

An envelope is one safetensors block: a JSON head (what each message is, its plain numbers, and notes of the sender),
and the tensors of all its messages as raw bytes behind it. Nothing in it is code. The reader checks sizes before it
reads, names, types and shapes before it makes a tensor, and gives one sentence for whatever is wrong.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import safetensors
import safetensors.torch
import torch

from fedframe.core.message import Message
from fedframe.errors import ProtocolError
from fedframe.util.files import tensors_to_bytes

MAX_HEAD_BYTES = 4 << 20  # bytes of names, shapes and numbers
MAX_BYTES = 4 << 30  # of a whole envelope, where no smaller limit is known
MAX_TEXT_LENGTH = 1000  # characters of one text
INTEGER_LIMIT = 2**63  # integers stay below: a larger one overflows whatever is computed with it
TYPES = {"F32", "F64", "I32", "I64", "U8", "BOOL"}  # of tensors, as safetensors names them
FIELDS = {"kind": str, "round": int, "unit": int, "numbers": dict}  # of a message's head


def encode_envelope(messages: Sequence[Message], notes: Mapping[str, Any]) -> bytes:
    """Encode all messages and the sender's notes as one block."""
    tensors = {f"{i}/{name}": tensor for i, message in enumerate(messages) for name, tensor in message.tensors.items()}
    heads = [message.checked().head() for message in messages]
    return tensors_to_bytes(tensors, {"messages": heads, "notes": dict(notes)})


def decode_envelope(content: bytes, max_bytes: int = MAX_BYTES) -> tuple[list[Message], dict[str, Any]]:
    """The messages and notes of an envelope; anything else is refused."""
    if len(content) > max_bytes:
        raise ProtocolError(f"A message of {len(content):,} bytes is larger than the {max_bytes:,} that are allowed.")
    head = read_head(content)
    described = [read_message_head(each) for each in head["messages"]]
    try:
        # Clones start on 64-byte lines, as in the sender's memory: kernels then round alike.
        found = {name: tensor.clone() for name, tensor in safetensors.torch.load(content).items()}
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        raise invalid_envelope(str(error)[:200]) from error
    by_message: dict[str, dict[str, torch.Tensor]] = {str(number): {} for number in range(len(described))}
    for name, tensor in found.items():
        number, _, rest = name.partition("/")
        if number not in by_message or not rest:
            raise invalid_envelope(f"the tensor {name[:80]!r} belongs to no message")
        by_message[number][rest] = tensor
    return [Message(tensors=t, **h) for h, t in zip(described, by_message.values(), strict=True)], head["notes"]


def read_head(content: bytes) -> dict[str, Any]:
    """What the envelope says of itself, before any tensor is made."""
    length = int.from_bytes(content[:8], "little") if len(content) >= 8 else -1
    if not 2 <= length <= min(MAX_HEAD_BYTES, len(content) - 8):
        raise invalid_envelope("its head is missing, cut off or too long")
    head: dict[str, Any]
    try:
        header = json.loads(content[8 : 8 + length])
        head = json.loads(header["__metadata__"]["fedframe"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise invalid_envelope("its head cannot be read") from error
    for name, entry in header.items():
        if name != "__metadata__" and (not isinstance(entry, dict) or str(entry.get("dtype")) not in TYPES):
            raise invalid_envelope(f"the tensor {name[:80]!r} is of a type that is not sent")
    fine = isinstance(head, dict) and isinstance(head.get("messages"), list) and isinstance(head.get("notes"), dict)
    if not fine:
        raise invalid_envelope("its head has no messages or no notes")
    return head


def read_message_head(head: object) -> dict[str, Any]:
    """Kind, round, unit and numbers of one message, of exactly the right types."""
    if not isinstance(head, dict) or set(head) != set(FIELDS):
        raise invalid_envelope("a message in it lacks its kind, round, unit or numbers")
    for name, kind in FIELDS.items():
        if type(head[name]) is not kind:
            raise invalid_envelope(f"the {name} of a message is a {type(head[name]).__name__}")
        if kind is not dict and not is_plain(head[name]):
            raise invalid_envelope(f"the {name} of a message is too large or cannot be printed")
    for name, number in head["numbers"].items():
        if not is_plain(number):
            raise invalid_envelope(f"{name[:80]!r} of a message is not a plain finite number or short text")
    return head


def is_plain(number: object) -> bool:
    """Whether it is an integer of 64 bits, a finite number or a short text that can be printed."""
    if type(number) is str:
        return len(number) <= MAX_TEXT_LENGTH and number.isprintable()
    if type(number) is int:
        return -INTEGER_LIMIT < number < INTEGER_LIMIT
    return type(number) is float and math.isfinite(number)


def invalid_envelope(reason: str) -> ProtocolError:
    """The error for bytes that are no envelope."""
    return ProtocolError(f"This is not a Fedframe message: {reason}.")
