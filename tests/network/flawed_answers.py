"""Answers that are flawed in one way or another, and a server over nodes in this process, for tests."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedframe.core.server import Server
from fedframe.network.envelope import decode_envelope, encode_envelope
from tests.network.in_process import InProcessTransport, Spoil, make, remote_engine


def server_with(
    tmp_path: Path, spoil: Spoil | None, method: str = "scaffold", **settings: Any
) -> tuple[Server, InProcessTransport]:
    job, _ = make(method, tmp_path / "run", **settings)
    engine = remote_engine(job, tmp_path / "nodes", 4, spoil)
    assert isinstance(engine.transport, InProcessTransport)
    return Server(job, engine, engine.transport.notes.append), engine.transport


def changed(content: bytes, **fields: Any) -> bytes:
    """An answer with something else in the head of its messages."""
    messages, notes = decode_envelope(content)
    return encode_envelope([replace(message, **fields) for message in messages], notes)


def tensors_changed(content: bytes, change: Any) -> bytes:
    """An answer with other tensors."""
    messages, notes = decode_envelope(content)
    return encode_envelope([replace(message, tensors=change(dict(message.tensors))) for message in messages], notes)


def with_nan(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    tensors["update"][0] = float("nan")
    return tensors


def with_number(content: bytes, name: str, digits: str) -> bytes:
    """An answer whose messages have this number in JSON, whatever its size."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    inner = json.loads(header["__metadata__"]["fedframe"])
    for message in inner["messages"]:
        message["numbers"][name] = "HERE"
    header["__metadata__"]["fedframe"] = json.dumps(inner).replace('"HERE"', digits)
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + content[8 + length :]


FLAWS: dict[str, Any] = {
    "NaN": lambda content: tensors_changed(content, with_nan),
    "another shape": lambda content: tensors_changed(content, lambda t: {**t, "update": torch.zeros(3)}),
    "another type": lambda content: tensors_changed(content, lambda t: {**t, "update": t["update"].to(torch.int32)}),
    "a tensor more": lambda content: tensors_changed(content, lambda t: {**t, "more": torch.zeros(1)}),
    "a tensor less": lambda content: tensors_changed(content, lambda t: {"update": t["update"]}),
    "another round": lambda content: changed(content, round=1),
    "another client": lambda content: changed(content, unit=2),
    "another kind": lambda content: changed(content, kind="own"),
    "no samples": lambda content: changed(content, numbers={"samples": 0, "loss": 0.0, "steps": 1}),
    "an endless number of samples": lambda content: with_number(content, "samples", "1" + "0" * 400),
    "an endless loss": lambda content: with_number(content, "loss", "1" + "0" * 400),
    "more samples than it has": lambda content: with_number(content, "samples", str(2**62)),
    "another run": lambda content: encode_envelope(decode_envelope(content)[0], {"run": "another"}),
    "garbage": lambda content: b"\x80\x04garbage",
    "nothing for its client": lambda content: encode_envelope([], decode_envelope(content)[1]),
    "cut off": lambda content: content[:-7],
    "far too large": lambda content: content + bytes(1 << 24),
    "an error": lambda content: "disk full",
}
