"""What carries letters to nodes and brings answers: Flower, or a few lines in a test."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fedframe.network.node_request import NodeRequest

DOUBT = 5.0  # seconds before a letter is sent again whose answer may have been lost, then twice as many
REPEAT = 600.0  # seconds without an answer before a letter is sent again, then twice as many, and so on


@dataclass(frozen=True)
class Delivery:
    """What became of a letter: the answer, or what went wrong."""

    ticket: str
    content: bytes = b""
    problem: str = ""
    doubtful: bool = False  # neither: an answer may have been lost on its last step, or may still come


@dataclass(eq=False)
class PendingRequest:
    """A letter that is out: to whom, until when it is waited for, and when it is sent again."""

    node: str
    errand: NodeRequest
    limit: float
    again: float = 0.0
    last: float = 0.0  # when it was sent
    pause: float = field(default_factory=lambda: REPEAT / 2)
    soon: float = field(default_factory=lambda: DOUBT / 2)

    def sent(self, now: float) -> None:
        """It was sent. No answer means that one of both was lost, or that the node is slow: ask ever less often."""
        self.pause *= 2
        self.last, self.again = now, now + self.pause

    def doubt(self) -> None:
        """Its answer may have been lost just now: ask soon, but do not flood a network in trouble with models."""
        self.soon *= 2
        self.again = min(self.again, self.last + self.soon)


class Transport(Protocol):
    """Carries letters to nodes and brings their answers."""

    def nodes(self) -> Collection[str]:
        """Names of the nodes that can be reached now."""

    def send(self, node: str, letter: bytes, round: int, seconds: float | None) -> str:
        """Send a letter that is good for so many seconds; a ticket for its answer."""

    def collect(self, tickets: Mapping[str, int]) -> list[Delivery]:
        """What has arrived for these tickets, each with the bytes that its answer may have; each comes once."""

    def processes(self) -> list[int]:
        """Ids of the processes that were started for it on this machine."""

    def close(self) -> None:
        """End what was started."""
