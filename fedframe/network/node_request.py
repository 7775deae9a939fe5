"""What goes to a node and what comes back: one letter each way, whatever is to be done there.

An errand is an order with the model, and a list of what to do with it for which of the node's clients. The answer
holds a reply per task and client. Both name the run they belong to: a letter of another run is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedframe.core.message import Message
from fedframe.errors import ProtocolError
from fedframe.network.envelope import decode_envelope, encode_envelope, refusal

HELLO = "hello"  # who are you: no model, no work
UNMASK = "unmask"  # what masks were made of, once masked replies have arrived: with secure aggregation only
KINDS = (HELLO, UNMASK, "client", "own", "train", "statistics", "personalise")  # all that a node can be asked
Tasks = Mapping[str, Sequence[int]]  # client numbers by kind of work, in the order in which it is done


@dataclass(frozen=True)
class NodeRequest:
    """An order for a node's clients."""

    run: str
    request: Message
    tasks: Tasks
    seen: Mapping[int, int] = field(default_factory=dict)  # the last round of each client that the server has merged
    circle: Mapping[str, Any] | None = None  # with whom replies are added up securely, as notes of `masks.MaskingGroup`
    number: int = 0  # grows from letter to letter: see `numbering`

    def to_bytes(self) -> bytes:
        """As a letter."""
        tasks = {kind: list(clients) for kind, clients in self.tasks.items()}
        seen = {str(client): round for client, round in self.seen.items()}
        notes = {"run": self.run, "tasks": tasks, "seen": seen, "number": self.number}
        return encode_envelope([self.request], notes if self.circle is None else {**notes, "circle": self.circle})

    @classmethod
    def from_bytes(cls, content: bytes) -> NodeRequest:
        """Read an errand; what is not one is refused."""
        messages, notes = decode_envelope(content)
        run, tasks, seen, number = (notes.get(name) for name in ("run", "tasks", "seen", "number"))
        if len(messages) != 1 or not isinstance(run, str) or not isinstance(tasks, dict) or not isinstance(seen, dict):
            raise refusal("it is no errand")
        if not all(client.isdecimal() and type(round) is int and round >= 0 for client, round in seen.items()):
            raise refusal("which rounds were merged cannot be read")
        if type(number) is not int or not 0 <= number < 1 << 63:
            raise refusal("its number cannot be read")
        for kind, clients in tasks.items():
            if kind not in KINDS:
                raise refusal(f"nobody here does {kind[:80]!r}")
            if not isinstance(clients, list) or not all(type(client) is int for client in clients):
                raise refusal(f"whose {kind} it wants cannot be read")
        merged = {int(client): round for client, round in seen.items()}
        return cls(run, messages[0], tasks, merged, notes.get("circle"), number)


def answer_bytes(run: str, replies: Sequence[Message]) -> bytes:
    """A node's replies as a letter."""
    return encode_envelope(replies, {"run": run})


def read_answer(content: bytes, errand: NodeRequest, most: int) -> dict[tuple[str, int], Message]:
    """A node's replies by kind and client; a letter of another run, or with what was not asked, is refused."""
    replies, notes = decode_envelope(content, most)
    if notes.get("run") != errand.run:
        raise ProtocolError(f"it belongs to the run {str(notes.get('run'))[:40]!r}, not to {errand.run!r}")
    found: dict[tuple[str, int], Message] = {}
    for reply in replies:
        if reply.unit not in errand.tasks.get(reply.kind, ()) or (reply.kind, reply.unit) in found:
            raise ProtocolError(f"it answers {reply.kind[:40]!r} for client {reply.unit}, which was not asked of it")
        if reply.round != errand.request.round:
            raise ProtocolError(f"it answers round {reply.round}, not round {errand.request.round}")
        found[reply.kind, reply.unit] = reply
    return found
