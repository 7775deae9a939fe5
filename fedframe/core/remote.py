"""What an engine must also answer if its clients are behind a network.

There, only a client has its test data, and a message costs seconds. So a client scores a model when the model comes to
it anyway: with the order of the next round, before it trains. The scores of round r arrive with round r + 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from torch import Size, Tensor

from fedframe.core.message import Message

LAST = "last"  # a number in the last order of a run, whatever its kind: clients keep the model that comes with it


@runtime_checkable
class Remote(Protocol):
    """An engine whose clients are elsewhere."""

    seen: Tensor  # (clients,) the last round in which a client's reply was merged, 0 for none
    expected: dict[str, dict[str, Size]]  # names and shapes of replies by kind of order, from the server
    summed: list[int]  # with secure aggregation: the clients for which the last reply stands

    def run(self, request: Message, units: Sequence[int]) -> Iterator[Message]:
        """As every engine's; with no units, only what was asked for by `also` is done."""

    def piggyback(self, kind: str, clients: Sequence[int]) -> None:
        """With the next order, and before it is performed, these clients do this too with the model that it brings."""

    def awaits(self) -> bool:
        """Whether something was asked for by `also` that no order has taken along yet."""

    def pop_replies(self, kind: str) -> list[Message] | None:
        """What the last order brought back of this kind, once; None if it was not asked for."""
