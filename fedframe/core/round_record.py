"""What is known about a round when it is over, and who may look at rounds while they are run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fedframe.core.evaluation import Scores
from fedframe.core.message import Message

if TYPE_CHECKING:
    from fedframe.core.server import Server


class Observer(Protocol):
    """Measures something while rounds are run; it changes nothing."""

    def begin(self, server: Server, clients: Sequence[int]) -> None:
        """A round begins with these clients; the model is still the one they get."""

    def on_reply(self, reply: Message) -> None:
        """A client's reply was accepted; its tensors are lent."""

    def end(self, server: Server, record: RoundRecord) -> None:
        """The round is over, merged and (if it is one that is) scored: add to the record's figures and lists."""


@dataclass
class RoundRecord:
    """What is known about a round when it is over: a line of `metrics.jsonl`."""

    round: int
    loss: float
    lr: float
    clients: int
    dropped: int = 0
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    figures: dict[str, float] = field(default_factory=dict)  # what parts and observers report
    by_client: dict[str, list[Any]] = field(default_factory=dict)  # the same client by client: a line of `drift.jsonl`
    scores: Scores | None = None
    late: Scores | None = None  # of the model that the round began with, where clients score it on their own data
