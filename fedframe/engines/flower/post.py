"""Flower's grid as a post: letters go out as Flower messages, answers are matched by the message they reply to."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import httpx
from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.run import RunNotRunningException

from fedframe.engines.flower.letter import from_record, to_record
from fedframe.engines.remote import Delivery
from fedframe.errors import DataError, RunError

KIND = "train"  # Flower wants a known kind; ours is inside the letter
WEEK = 7 * 24 * 3600.0  # a letter without a limit must still have one
SHORTLY = 60.0  # seconds in which a SuperLink that is busy, or started again by `serve`, answers
Found = TypeVar("Found")


class FlowerPost:
    """Carries letters over a Flower grid whose nodes are known by name."""

    def __init__(self, grid: Grid, name_of: Callable[[Any], str]) -> None:
        self.grid, self.name_of = grid, name_of
        self._ids: dict[str, int] = {}

    def nodes(self) -> Collection[str]:
        """Names of the nodes that Flower has heard of lately."""
        self._ids = {self.name_of(node): int(node.node_id) for node in persistently(self.grid.get_nodes)}
        return self._ids.keys()

    def send(self, node: str, letter: bytes, round: int, seconds: float | None) -> str:
        """Push a message; its id is the ticket."""
        message = Message(
            to_record(letter), self._ids[node], KIND, ttl=seconds if seconds is not None else WEEK, group_id=str(round)
        )
        ticket = next(iter(persistently(lambda: self.grid.push_messages([message]))), None)
        if not ticket:
            raise DataError("the SuperLink did not take its letter")
        return str(ticket)

    def collect(self, tickets: Collection[str]) -> list[Delivery]:
        """Pull what has arrived."""
        return [delivery(message) for message in persistently(lambda: self.grid.pull_messages(list(tickets)))]

    def processes(self) -> list[int]:
        """Whoever starts processes knows them."""
        return []

    def close(self) -> None:
        """The grid belongs to whoever opened it."""


def delivery(message: Message) -> Delivery:
    """What a Flower reply is to us."""
    ticket = message.metadata.reply_to_message_id
    if message.has_error():
        reason = " ".join(str(message.error.reason or f"Flower's error {message.error.code}").split())
        return Delivery(ticket, problem=reason[:500])
    try:
        return Delivery(ticket, from_record(message.content))
    except DataError as error:
        return Delivery(ticket, problem=str(error).rstrip("."))


def persistently(call: Callable[[], Found]) -> Found:
    """Call a SuperLink that may be busy for a moment; one that is gone, or has ended the run, ends ours too."""
    deadline = time.monotonic() + SHORTLY
    while True:
        try:
            return call()
        except (httpx.HTTPError, RunNotRunningException) as error:
            gone = isinstance(error, httpx.TransportError)
            if not gone or time.monotonic() > deadline:
                what = "does not answer" if gone else f"has ended the run ({type(error).__name__}: {error})"
                raise RunError(f"The SuperLink {what}; start it and go on.") from error
            time.sleep(0.5)
