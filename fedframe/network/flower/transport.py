"""Flower's grid as a post: letters go out as Flower messages, answers are matched by the message they reply to.

Which one that is says the SuperLink, not the sender. Whatever else is wrong with a reply is its node's problem alone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.run import RunNotRunningException

from fedframe.errors import DataError, RunError
from fedframe.network.flower.chunks import Arriving
from fedframe.network.flower.records import from_record, to_record
from fedframe.network.transport import Delivery

KIND = "train"  # Flower wants a known kind; ours is inside the letter
WEEK = 7 * 24 * 3600.0  # a letter without a limit must still have one
SHORTLY = 60.0  # seconds in which a SuperLink that is busy, or started again by `serve`, answers
NEVER_THERE = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)  # the question did not reach the SuperLink
Found = TypeVar("Found")


class FlowerTransport:
    """Carries letters over a Flower grid whose nodes are known by name."""

    def __init__(self, grid: Any, name_of: Callable[[Any], str] = lambda node: str(node.name)) -> None:
        self.grid, self.name_of = grid, name_of  # Flower's HttpGrid; replies are pulled with its client, not by itself
        self._ids: dict[str, int] = {}
        self._arriving: dict[str, Arriving] = {}
        self._open: set[str] = set()  # tickets that were asked for and have brought nothing yet
        self._spare: set[str] = set()  # tickets that nobody asks for any more; what they bring is to be deleted there

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

    def collect(self, tickets: Mapping[str, int]) -> list[Delivery]:
        """Pull what has arrived; a reply of which pieces are still to come waits for another look.

        The SuperLink gives every reply once. If it was cut off while it answered, it may have given what we never got.
        """
        found: list[Delivery] = []
        self.let_go(tickets)
        wanted = [ticket for ticket in tickets if ticket not in self._arriving]
        asked = PullAppMessagesRequest(message_ids=[*wanted, *self._spare])
        if wanted:
            cut: list[BaseException] = []
            new = persistently(lambda: self.grid._runtime_client.PullMessages(asked), cut.append)
            told = {envelope.metadata.reply_to_message_id for envelope in new.messages_list}
            if any(not isinstance(error, NEVER_THERE) for error in cut):
                found += [Delivery(ticket, doubtful=True) for ticket in wanted if ticket not in told]
            for envelope, tree in zip(new.messages_list, new.message_object_trees, strict=True):
                ticket = envelope.metadata.reply_to_message_id
                if ticket in tickets:
                    try:
                        self._arriving[ticket] = Arriving.announced(tree, tickets[ticket])
                    except DataError as error:
                        self.confirm(tree.object_id)
                        found.append(Delivery(ticket, problem=one_line(str(error))))
                elif ticket in self._spare:
                    self._spare.discard(ticket)
                    self.confirm(tree.object_id)
        for ticket, reply in list(self._arriving.items()):
            arrived = self.look(ticket, reply)
            if arrived is not None:
                del self._arriving[ticket]
                found.append(arrived)
        self._open -= {each.ticket for each in found if not each.doubtful}
        return found

    def let_go(self, tickets: Collection[str]) -> None:
        """Forget what is not asked for any more; the SuperLink would keep it until the run ends."""
        for ticket in self._arriving.keys() - set(tickets):
            self.confirm(self._arriving.pop(ticket).root)
            self._open.discard(ticket)
        self._spare |= self._open - set(tickets)
        self._open = set(tickets)

    def look(self, ticket: str, reply: Arriving) -> Delivery | None:
        """What a reply brings, or what is wrong with it; None if it is not all here yet."""
        try:
            if not reply.whole(self.pull):
                return None
            self.confirm(reply.root)
            return delivery(ticket, reply.opened())
        except RunError:  # the SuperLink is gone: no node's fault
            raise
        except Exception as error:  # what Flower stumbles over in pieces that a member made can be anything
            self.confirm(reply.root)
            said = str(error) if isinstance(error, DataError) else f"It cannot be read ({type(error).__name__})"
            return Delivery(ticket, problem=one_line(said))

    def pull(self, name: str) -> PullObjectResponse:
        """A piece of a reply."""
        asked = PullObjectRequest(node=self.grid.node, run_id=self.grid.run.run_id, object_id=name)
        found: PullObjectResponse = persistently(lambda: self.grid._runtime_client.PullObject(asked))
        return found

    def confirm(self, name: str) -> None:
        """Tell the SuperLink that it need not keep a reply; if it is gone, the next call says so."""
        asked = ConfirmMessageReceivedRequest(node=self.grid.node, run_id=self.grid.run.run_id, message_object_id=name)
        with contextlib.suppress(httpx.HTTPError):
            self.grid._runtime_client.ConfirmMessageReceived(asked)

    def processes(self) -> list[int]:
        """Whoever starts processes knows them."""
        return []

    def close(self) -> None:
        """The grid belongs to whoever opened it."""


def delivery(ticket: str, message: Message) -> Delivery:
    """What a Flower reply is to us."""
    if message.has_error():
        return Delivery(ticket, problem=reason_of(message.error))
    try:
        return Delivery(ticket, from_record(message.content))
    except DataError as error:
        return Delivery(ticket, problem=one_line(str(error)))


def reason_of(error: Error) -> str:
    """Why there is no reply, in our words where Flower says it itself."""
    own = {ErrorCode.NODE_UNAVAILABLE: "its node is gone", ErrorCode.MESSAGE_UNAVAILABLE: "its letter has expired"}
    return own.get(error.code) or one_line(error.reason or f"Flower's error {error.code}")


def one_line(text: str) -> str:
    """A text of somebody else as part of a sentence."""
    return " ".join(text.split())[:500].rstrip(".") or "no reason"


def busy(error: BaseException) -> bool:
    """Whether an answer says no more than that there is too much to do, or that something went wrong this time."""
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (429, *range(500, 600))


def persistently(call: Callable[[], Found], failed: Callable[[BaseException], None] = lambda error: None) -> Found:
    """Call a SuperLink that may be busy for a moment; one that is gone, or has ended the run, ends ours too."""
    deadline = time.monotonic() + SHORTLY
    while True:
        try:
            return call()
        except (httpx.HTTPError, RunNotRunningException) as error:
            gone = isinstance(error, httpx.TransportError) or busy(error)
            if not gone or time.monotonic() > deadline:
                what = "does not answer" if gone else f"has ended the run ({type(error).__name__}: {error})"
                raise RunError(f"The SuperLink {what}; start it and go on.") from error
            failed(error)
            time.sleep(0.5)
