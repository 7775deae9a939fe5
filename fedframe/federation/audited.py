"""What the audit log says of messages: a node's answers before they leave, an organiser's requests and replies."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedframe.core.message import Message
from fedframe.errors import ProtocolError
from fedframe.federation.audit import AuditLog, digest_of
from fedframe.network.envelope import read_head
from fedframe.network.transport import Delivery, Transport

KINDS = "kinds"


def message_of(content: bytes) -> dict[str, Any]:
    """What a message is about, by its head alone; of one that cannot be read its size and digest."""
    found: dict[str, Any] = {"bytes": len(content), "digest": digest_of(content)}
    try:
        head = read_head(content)
        notes, messages = head["notes"], [each for each in head["messages"] if isinstance(each, dict)]
    except ProtocolError:
        return found
    run = notes.get("run", notes.get("survey"))
    tasks = {f"survey {str(notes.get('stage'))[:40]}": []} if "survey" in notes else notes.get("tasks")
    kinds = list(tasks) if isinstance(tasks, dict) else [str(each.get("kind"))[:40] for each in messages]
    rounds = [each["round"] for each in messages if type(each.get("round")) is int]
    return {
        **found,
        **({"run": run[:80]} if isinstance(run, str) else {}),
        **({"round": max(rounds)} if rounds else {}),
        KINDS: kinds[:20],
    }


def reply_contents(replies: Sequence[Message]) -> list[dict[str, Any]]:
    """The parts of an answer: names, types and shapes of tensors, and all plain numbers."""
    return [
        {
            "kind": reply.kind,
            "round": reply.round,
            "tensors": {name: [str(t.dtype)[6:], list(t.shape)] for name, t in reply.tensors.items()},
            "numbers": dict(reply.numbers),
        }
        for reply in replies
    ]


class AuditedTransport:
    """A transport whose messages are all in the organiser's log."""

    def __init__(self, inner: Transport, log: AuditLog) -> None:
        self.inner, self.log = inner, log
        self._asked: dict[str, str] = {}  # the node by ticket

    def nodes(self) -> Collection[str]:
        """Names of the nodes that can be reached now."""
        return self.inner.nodes()

    def send(self, node: str, payload: bytes, round: int, timeout: float | None) -> str:
        """Log a request, and send it."""
        self.log.add("sent", node=node, **message_of(payload))
        ticket = self.inner.send(node, payload, round, timeout)
        self._asked[ticket] = node
        return ticket

    def collect(self, tickets: Mapping[str, int]) -> list[Delivery]:
        """What has arrived, once it is in the log."""
        found = self.inner.collect(tickets)
        for each in found:
            node = self._asked.get(each.ticket, "")
            if each.content:
                self.log.add("arrived", node=node, **message_of(each.content))
            elif each.problem:
                self.log.add("no answer", node=node, text=each.problem[:500])
        return found

    def processes(self) -> list[int]:
        """Ids of the processes that were started for it on this machine."""
        return self.inner.processes()

    def close(self) -> None:
        """End what was started."""
        self.inner.close()
