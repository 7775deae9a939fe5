"""What is sent to a node and what comes back: one envelope each way, whatever is to be done there.

A `NodeRequest` is a request with the model, and a list of what to do with it for which of the node's clients. The
answer holds a reply per task and client. Both name the run they belong to: an envelope of another run is refused.

Requests of a run are numbered, so that a node recognises one that arrives after a newer one and refuses it: a request
says which states of a client were merged, and a node forgets the others, so an old request would make it forget states
that have been merged since. Numbers grow across sessions of the organiser too, however a session ends: each counts from
the second in which it began, and from more than the last one even if the clock was set back. So they grow also if the
organiser's folder was restored from an older copy.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedframe.core.imbalance import CLASSES
from fedframe.core.message import Message
from fedframe.errors import DataError, ProtocolError
from fedframe.network.envelope import decode_envelope, encode_envelope, invalid_envelope
from fedframe.util.files import read_json, write_json

# What nodes and organiser say to each other; 1 had no signed lists of survivors, 2 told who had diverged, with 3 nobody
# asked for counts by class before the first round and histograms of scores had other bins, and 4 wanted as many
# signatures as there must be clients in a sum.
PROTOCOL = 5
HELLO = "hello"  # asks who a client is: no model, no work
AGREE = "agree"  # asks for a signature under the list of those whose masked replies have arrived
UNMASK = "unmask"  # asks for the seeds of masks once masked replies have arrived: with secure aggregation only
KINDS = (
    HELLO,
    AGREE,
    UNMASK,
    CLASSES,
    "client",
    "own",
    "train",
    "statistics",
    "personalise",
    "measure",
    "end",
)  # all that a node can be asked
COUNT_KINDS = ("client", "own", "personalise")  # kinds of work whose reply is how many predictions were right
NUMBERS_FOLDER = "letters"  # in a run's folder, at the organiser and at the node; in a local deployment both are one
NUMBERS_PER_SESSION = 1 << 28  # more than a session ever sends; times the seconds of some centuries it is below 2**63
Tasks = Mapping[str, Sequence[int]]  # client numbers by kind of work, in the order in which it is done


@dataclass(frozen=True)
class NodeRequest:
    """A request for a node's clients."""

    run: str
    request: Message
    tasks: Tasks
    seen: Mapping[int, int] = field(default_factory=dict)  # the last round of each client that the server has merged
    group: Mapping[str, Any] | None = None  # whose replies are summed securely, as `MaskingGroup.to_json` gives it
    number: int = 0  # grows from request to request

    def to_bytes(self) -> bytes:
        """Encode it as an envelope."""
        tasks = {kind: list(clients) for kind, clients in self.tasks.items()}
        seen = {str(client): round for client, round in self.seen.items()}
        notes = {"run": self.run, "tasks": tasks, "seen": seen, "number": self.number}
        return encode_envelope([self.request], notes if self.group is None else {**notes, "circle": self.group})

    @classmethod
    def from_bytes(cls, content: bytes) -> NodeRequest:
        """Decode a request, or refuse anything else."""
        messages, notes = decode_envelope(content)
        run, tasks, seen, number = (notes.get(name) for name in ("run", "tasks", "seen", "number"))
        if len(messages) != 1 or not isinstance(run, str) or not isinstance(tasks, dict) or not isinstance(seen, dict):
            raise invalid_envelope("it is no request")
        if not all(client.isdecimal() and type(round) is int and round >= 0 for client, round in seen.items()):
            raise invalid_envelope("which rounds were merged cannot be read")
        if type(number) is not int or not 0 <= number < 1 << 63:
            raise invalid_envelope("its number cannot be read")
        for kind, clients in tasks.items():
            if kind not in KINDS:
                raise invalid_envelope(f"there is no kind of work {kind[:80]!r}")
            if not isinstance(clients, list) or not all(type(client) is int for client in clients):
                raise invalid_envelope(f"whose {kind} it wants cannot be read")
        merged = {int(client): round for client, round in seen.items()}
        return cls(run, messages[0], tasks, merged, notes.get("circle"), number)


def encode_replies(run: str, replies: Sequence[Message]) -> bytes:
    """Encode a node's replies as an envelope."""
    return encode_envelope(replies, {"run": run})


def decode_replies(content: bytes, node_request: NodeRequest, max_bytes: int) -> dict[tuple[str, int], Message]:
    """A node's replies by kind and client; an answer of another run, or to what was not asked, is refused."""
    replies, notes = decode_envelope(content, max_bytes)
    if notes.get("run") != node_request.run:
        raise ProtocolError(f"it belongs to the run {str(notes.get('run'))[:40]!r}, not to {node_request.run!r}")
    found: dict[tuple[str, int], Message] = {}
    for reply in replies:
        if reply.unit not in node_request.tasks.get(reply.kind, ()) or (reply.kind, reply.unit) in found:
            raise ProtocolError(f"it answers {reply.kind[:40]!r} for client {reply.unit}, which was not asked of it")
        if reply.round != node_request.request.round:
            raise ProtocolError(f"it answers round {reply.round}, not round {node_request.request.round}")
        found[reply.kind, reply.unit] = reply
    return found


# -- numbers -----------------------------------------------------------------------------------------------------------
class RequestNumbers:
    """The organiser's side: numbers for requests, each larger than all before."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NUMBERS_FOLDER / "sent.json"
        self.last: int | None = None

    def next(self) -> int:
        """A new number."""
        if self.last is None:
            before = int(read_json(self.path)["began"]) if self.path.exists() else 0
            began = max(before + 1, int(time.time()))
            write_json(self.path, {"began": began})
            self.last = began * NUMBERS_PER_SESSION
        self.last += 1
        return self.last


def refuse_stale(folder: Path, clients: Collection[int], number: int) -> None:
    """The node's side: refuse a request with a smaller number than one before; a repeated request does no harm."""
    path = folder / NUMBERS_FOLDER / f"taken-{min(clients)}.json"  # local nodes share a folder, but no client
    try:
        newest = int(read_json(path)["number"]) if path.exists() else 0
    except (DataError, KeyError, TypeError, ValueError):
        newest = 0  # a damaged file must not keep a node out for good
    if number < newest:
        raise ProtocolError("This message came after a newer one and is not obeyed.")
    if number > newest:
        write_json(path, {"number": number})
