"""What the stages after the last round cost: bytes by the name of the tensor, as in rounds, and seconds.

A stage counts what the server sends to clients and what they send back; scoring is no part of it, as in rounds. A run
that is resumed after its last round does its stages again, and they are counted once, as they were done to the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from fedframe.core.message import ALL, Message

Stage = Literal["server_stage", "client_stage"]  # named after the slots that fill them
COUNTS_BYTES = 3 * 8  # of a client's reply to `personalise`: hits, samples and whether it diverged, as whole numbers


@dataclass
class StageCost:
    """Bytes that all clients together sent and received in a stage, and its seconds."""

    traffic: dict[str, dict[str, int]] = field(default_factory=lambda: {"up": {}, "down": {}})
    seconds: float = 0.0

    def add(self, way: str, name: str, size: int) -> None:
        """Count the bytes of one tensor."""
        self.traffic[way][name] = self.traffic[way].get(name, 0) + size

    def sent(self, request: Message, clients: int) -> None:
        """Count a request that goes to so many clients."""
        for name, tensor in request.tensors.items():
            self.add("down", name, tensor.nbytes * clients)

    def received(self, reply: Message) -> None:
        """Count a reply; a sum that was made of masked vectors says how large they were."""
        if reply.unit == ALL:
            self.add("up", "masked", int(reply.numbers["bytes"]))
            return
        for name, tensor in reply.tensors.items():
            self.add("up", name, tensor.nbytes)

    def bytes(self, way: str) -> int:
        """All bytes in one direction."""
        return sum(self.traffic[way].values())


class StageCosts(dict[Stage, StageCost]):
    """The costs of a run's stages by name; a stage that the run does not have is not in it."""

    @contextmanager
    def measure(self, stage: Stage) -> Iterator[StageCost]:
        """Time a stage, from nothing; whoever sends and receives in it adds the bytes to `self[stage]`."""
        cost = self[stage] = StageCost()
        began = time.perf_counter()
        yield cost
        cost.seconds = time.perf_counter() - began
