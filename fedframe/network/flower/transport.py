"""Flower's grid as a transport: requests go out as Flower messages, answers are matched by the message they reply to.

The SuperLink says which one that is, not the sender. Whatever else is wrong with a reply is its node's problem alone.
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
from fedframe.network.flower.chunks import IncomingReply
from fedframe.network.flower.records import from_record, to_record
from fedframe.network.transport import Delivery

KIND = "train"  # Flower wants a known kind; ours is inside the payload
DEFAULT_TTL = 7 * 24 * 3600.0  # seconds: Flower wants a limit where there is none
RETRY_SECONDS = 60.0  # in which a SuperLink that is busy, or started again by `serve`, answers
NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)  # the call did not reach the SuperLink
Found = TypeVar("Found")


class FlowerTransport:
    """Carries requests over a Flower grid whose nodes are known by name."""

    def __init__(self, grid: Any, name_of: Callable[[Any], str] = lambda node: str(node.name)) -> None:
        self.grid, self.name_of = grid, name_of  # Flower's HttpGrid; replies are pulled with its client, not by itself
        self._ids: dict[str, int] = {}
        self._incoming: dict[str, IncomingReply] = {}
        self._open: set[str] = set()  # tickets that are asked for and have brought nothing yet
        self._abandoned: set[str] = set()  # tickets nobody asks for any more: what they bring is to be deleted

    def nodes(self) -> Collection[str]:
        """Names of the nodes that are connected to the SuperLink."""
        self._ids = {self.name_of(node): int(node.node_id) for node in with_retries(self.grid.get_nodes)}
        return self._ids.keys()

    def send(self, node: str, payload: bytes, round: int, timeout: float | None) -> str:
        """Push a message; its id is the ticket."""
        ttl = timeout if timeout is not None else DEFAULT_TTL
        message = Message(to_record(payload), self._ids[node], KIND, ttl=ttl, group_id=str(round))
        ticket = next(iter(with_retries(lambda: self.grid.push_messages([message]))), None)
        if not ticket:
            raise DataError("the SuperLink did not take its message")
        return str(ticket)

    def collect(self, tickets: Mapping[str, int]) -> list[Delivery]:
        """Pull what has arrived; a reply of which pieces are still to come waits for another poll.

        The SuperLink gives every reply once. If it was cut off while it answered, it may have given what never arrived.
        """
        found: list[Delivery] = []
        self.abandon_others(tickets)
        wanted = [ticket for ticket in tickets if ticket not in self._incoming]
        asked = PullAppMessagesRequest(message_ids=[*wanted, *self._abandoned])
        if wanted:
            failures: list[BaseException] = []
            new = with_retries(lambda: self.grid._runtime_client.PullMessages(asked), failures.append)
            announced = {envelope.metadata.reply_to_message_id for envelope in new.messages_list}
            if any(not isinstance(error, NEVER_SENT) for error in failures):
                found += [Delivery(ticket, doubtful=True) for ticket in wanted if ticket not in announced]
            for envelope, tree in zip(new.messages_list, new.message_object_trees, strict=True):
                ticket = envelope.metadata.reply_to_message_id
                if ticket in tickets:
                    try:
                        self._incoming[ticket] = IncomingReply.from_tree(tree, tickets[ticket])
                    except DataError as error:
                        self.confirm(tree.object_id)
                        found.append(Delivery(ticket, problem=part_of_sentence(str(error))))
                elif ticket in self._abandoned:
                    self._abandoned.discard(ticket)
                    self.confirm(tree.object_id)
        for ticket, reply in list(self._incoming.items()):
            delivery = self.receive(ticket, reply)
            if delivery is not None:
                del self._incoming[ticket]
                found.append(delivery)
        self._open -= {each.ticket for each in found if not each.doubtful}
        return found

    def abandon_others(self, tickets: Collection[str]) -> None:
        """Abandon what is not asked for any more; the SuperLink would keep it until the run ends."""
        for ticket in self._incoming.keys() - set(tickets):
            self.confirm(self._incoming.pop(ticket).root)
            self._open.discard(ticket)
        self._abandoned |= self._open - set(tickets)
        self._open = set(tickets)

    def receive(self, ticket: str, reply: IncomingReply) -> Delivery | None:
        """What a reply brings, or what is wrong with it; None if it is not complete yet."""
        try:
            if not reply.pull_missing(self.pull):
                return None
            self.confirm(reply.root)
            return to_delivery(ticket, reply.to_message())
        except RunError:  # the SuperLink is gone: no node's fault
            raise
        except Exception as error:  # what Flower stumbles over in pieces that a member made can be anything
            self.confirm(reply.root)
            problem = str(error) if isinstance(error, DataError) else f"It cannot be read ({type(error).__name__})"
            return Delivery(ticket, problem=part_of_sentence(problem))

    def pull(self, name: str) -> PullObjectResponse:
        """Pull a piece of a reply."""
        asked = PullObjectRequest(node=self.grid.node, run_id=self.grid.run.run_id, object_id=name)
        found: PullObjectResponse = with_retries(lambda: self.grid._runtime_client.PullObject(asked))
        return found

    def confirm(self, name: str) -> None:
        """Tell the SuperLink that it need not keep a reply; if it is gone, the next call says so."""
        asked = ConfirmMessageReceivedRequest(node=self.grid.node, run_id=self.grid.run.run_id, message_object_id=name)
        with contextlib.suppress(httpx.HTTPError):
            self.grid._runtime_client.ConfirmMessageReceived(asked)

    def processes(self) -> list[int]:
        """No processes: none are started here."""
        return []

    def close(self) -> None:
        """Leave the grid open: it belongs to its opener."""


def to_delivery(ticket: str, message: Message) -> Delivery:
    """A Flower reply as a delivery."""
    if message.has_error():
        return Delivery(ticket, problem=error_reason(message.error))
    try:
        return Delivery(ticket, from_record(message.content))
    except DataError as error:
        return Delivery(ticket, problem=part_of_sentence(str(error)))


def error_reason(error: Error) -> str:
    """Why there is no reply; in plainer words where Flower itself made the error."""
    own = {ErrorCode.NODE_UNAVAILABLE: "its node is gone", ErrorCode.MESSAGE_UNAVAILABLE: "its message has expired"}
    return own.get(error.code) or part_of_sentence(error.reason or f"Flower's error {error.code}")


def part_of_sentence(text: str) -> str:
    """A text from another machine as part of a sentence."""
    return " ".join(text.split())[:500].rstrip(".") or "no reason"


def is_temporary(error: BaseException) -> bool:
    """Whether a response only says that there is too much to do, or that something went wrong this time."""
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (429, *range(500, 600))


def with_retries(call: Callable[[], Found], on_failure: Callable[[BaseException], None] = lambda error: None) -> Found:
    """Call a SuperLink that may be busy for a moment; one that is gone, or has ended the run, ends ours too."""
    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            return call()
        except (httpx.HTTPError, RunNotRunningException) as error:
            gone = isinstance(error, httpx.TransportError) or is_temporary(error)
            if not gone or time.monotonic() > deadline:
                what = "does not answer" if gone else f"has ended the run ({type(error).__name__}: {error})"
                raise RunError(f"The SuperLink {what}; start it and go on.") from error
            on_failure(error)
            time.sleep(0.5)
