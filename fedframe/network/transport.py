"""What carries requests to nodes and brings back their answers: Flower, or a few lines in a test."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fedframe.network.node_request import NodeRequest

DOUBT_DELAY = 5.0  # seconds before a request is resent whose answer may have been lost, doubled each time
REPEAT_DELAY = 600.0  # seconds without an answer before a request is resent, doubled each time


@dataclass(frozen=True)
class Delivery:
    """What became of a request: the answer, or what went wrong."""

    ticket: str
    content: bytes = b""
    problem: str = ""
    doubtful: bool = False  # neither: the answer may have been lost on its last step, or may still come


@dataclass(eq=False)
class PendingRequest:
    """A request without an answer yet: its node, its deadline, and when it is sent again."""

    node: str
    node_request: NodeRequest
    deadline: float
    resend_at: float = 0.0
    sent_at: float = 0.0
    repeat_delay: float = field(default_factory=lambda: REPEAT_DELAY / 2)
    doubt_delay: float = field(default_factory=lambda: DOUBT_DELAY / 2)

    def mark_sent(self, now: float) -> None:
        """Schedule the next repetition: without an answer something was lost or the node is slow, so ever later."""
        self.repeat_delay *= 2
        self.sent_at, self.resend_at = now, now + self.repeat_delay

    def mark_doubtful(self) -> None:
        """Resend soon, as the answer may have been lost, without flooding a network in trouble with models."""
        self.doubt_delay *= 2
        self.resend_at = min(self.resend_at, self.sent_at + self.doubt_delay)


class Transport(Protocol):
    """Carries requests to nodes and brings back their answers."""

    def nodes(self) -> Collection[str]:
        """Names of the nodes that can be reached now."""

    def send(self, node: str, payload: bytes, round: int, timeout: float | None) -> str:
        """Send a request that is valid for so many seconds; returns the ticket under which its answer arrives."""

    def collect(self, tickets: Mapping[str, int]) -> list[Delivery]:
        """What has arrived for these tickets, given with the size limit of each answer; each arrives once."""

    def processes(self) -> list[int]:
        """Ids of the processes that were started for it on this machine."""

    def close(self) -> None:
        """End what was started."""
