"""A node: a Flower SuperNode beside this process, and this process in the place of the ClientApp.

Flower would start a new Python process for every message and run code that the SuperLink sends. Here the process that
holds the data claims each message from its own SuperNode (what Flower calls isolation "process"): code that is sent is
never unpacked, data and model stay in memory, and a round costs no start of a process. The SuperNode is started again
with growing pauses for as long as it takes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Context, Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import context_from_proto
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, pull_and_inflate_object_from_tree
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import push_message, push_task_output

from fedframe.errors import ProtocolError, RunError
from fedframe.network.certificates import write_secret
from fedframe.network.flower.connection_reporter import ConnectionReporter
from fedframe.network.flower.environment import environment
from fedframe.network.flower.reachability import why_not
from fedframe.network.flower.records import from_record, to_record
from fedframe.util.processes import Child, free_ports, wait_for_port

POLL = 0.4  # seconds between two looks for a message: a look costs two processes a few milliseconds
AGAIN = 0.1  # seconds before the first second look for a piece of a message
BEAT = 15.0  # seconds between two signs of life
PAUSES = (2.0, 5.0, 10.0, 20.0, 30.0)  # seconds before a SuperNode is started again
SETTLED = 120.0  # seconds after which a SuperNode counts as well and pauses begin anew
Answer = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Place:
    """What a node needs to reach its federation."""

    address: str
    ca: Path
    key: Path
    folder: Path  # for its log and Flower's own files
    name: str = "this node"  # what to call it


class Node:
    """A SuperNode and the loop that answers its messages."""

    def __init__(
        self,
        place: Place,
        answer: Answer,
        note: Callable[[str], None],
        tells: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.place, self.answer, self._note = place, answer, note
        self.tells = tells  # is given what the organiser is told of an error, before it leaves
        self.secret = secrets.token_bytes(32)
        self.child: Child | None = None
        self.words = ConnectionReporter(place.address, place.name, self.note, lambda: why_not(place.address, place.ca))
        self.over = threading.Event()
        self.one_at_a_time = threading.Lock()  # there is one model and one memory

    def note(self, text: str) -> None:
        """Say what happened; that it cannot be written down (a full disk) is no reason to stop."""
        with contextlib.suppress(OSError):
            self._note(text)

    # -- the SuperNode -------------------------------------------------------------------------------------------------
    def start(self) -> RuntimeHttpClient:
        """Start the SuperNode; its Runtime interface is on loopback and wants a secret."""
        folder = self.place.folder
        secret = folder / "executor.secret"
        write_secret(secret, self.secret)
        (port,) = free_ports(1)
        command = [
            sys.executable, "-m", "fedframe.network.flower.supernode",
            "--superlink", self.place.address,
            "--root-certificates", str(self.place.ca),
            "--auth-supernode-private-key", str(self.place.key),
            "--isolation", "process",
            "--superexec-auth-secret-file", str(secret),
            "--host", "127.0.0.1",
            "--port", str(port),
        ]  # fmt: skip
        self.child = Child(command, folder / "supernode.log", environment(folder / "flower"))
        wait_for_port(self.child, "127.0.0.1", port, self.over)
        self.port = port
        return self.client(
            SuperExecAuthHttpInterceptor(
                master_secret=self.secret, protected_methods={"/flwr.proto.Runtime/AcquireTask"}
            )
        )

    def client(self, *interceptors: Any) -> RuntimeHttpClient:
        """A line to the SuperNode."""
        version = RuntimeVersionHttpInterceptor(component_name="fedframe")
        return RuntimeHttpClient.from_server_address(f"127.0.0.1:{self.port}", True, None, [version, *interceptors])

    def stay(self) -> None:
        """Serve until `over` is set; whatever becomes of the SuperNode, it is started again."""
        failures = 0
        try:
            while not self.over.is_set():
                began = time.monotonic()
                try:
                    self.serve()
                except (RunError, httpx.HTTPError) as error:
                    failures = 0 if time.monotonic() - began > SETTLED else failures
                    pause = PAUSES[min(failures, len(PAUSES) - 1)]
                    failures += 1
                    self.words.ended(self.child.said() if self.child is not None else "", reason(error))
                    self.over.wait(pause)
                finally:
                    self.end()
        finally:
            self.end()

    def serve(self) -> None:
        """Answer messages for as long as the SuperNode lives."""
        self.words.look()  # starting takes a while: say first what can be known
        line = self.start()
        wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        with contextlib.closing(line):
            while not self.over.is_set():
                assert self.child is not None
                if not self.child.alive:
                    raise RunError(f"the SuperNode of this machine {self.child.ending()} (see {self.child.log})")
                self.words.pop_replies(self.child.said())
                found = line.AcquireTask(wanted)
                if found.HasField("task") and found.token:
                    # A thread for each: a message whose sender died while sending it never becomes whole, and the
                    # next one must not wait for it.
                    name = f"fedframe-letter-{found.task.task_id}"
                    threading.Thread(target=self.perform, args=(found.token,), name=name, daemon=True).start()
                else:
                    self.over.wait(POLL)

    def end(self) -> None:
        """End the SuperNode."""
        if self.child is not None:
            self.child.end()
            self.child = None

    # -- one message ---------------------------------------------------------------------------------------------------
    def perform(self, token: str) -> None:
        """Take the message of a claimed task and push the reply; what goes wrong becomes an error reply."""
        client = self.client(RuntimeTokenHttpInterceptor(token))
        try:
            with contextlib.closing(client), signs_of_life(client):
                message, context = take_message(client)
                with self.one_at_a_time:
                    reply = self.reply(message)
                push_message(client, reply, context)
                push_task_output(client, context, SubStatus.COMPLETED, "")
        except (httpx.HTTPError, ObjectPullError, RunError) as error:
            self.note(lost(error))

    def reply(self, message: Message) -> Message:
        """The answer to a message, or one sentence on why there is none."""
        try:
            return Message(to_record(self.answer(from_record(message.content))), reply_to=message)
        except Exception as error:  # whatever a net or a disk does, the node stays
            self.note(f"A letter could not be answered: {type(error).__name__}: {error}")
            told = what_is_told(error)
        with contextlib.suppress(OSError):  # on a full disk the organiser should learn at least that it is full
            self.tells(told)
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, told), reply_to=message)


def take_message(client: RuntimeHttpClient) -> tuple[Message, Context]:
    """The message of a claimed task, once the SuperNode has all its pieces; code that came with it is left alone."""
    given = client.PullTaskInput(PullTaskInputRequest())
    context = context_from_proto(given.context)
    found = client.PullMessages(PullAppMessagesRequest())
    if not found.messages_list:
        raise RunError("the SuperNode has no message for its task")
    tree, node = found.message_object_trees[0], NodeProto(node_id=context.node_id)
    message = pull_and_inflate_object_from_tree(
        tree,
        make_pull_object_fn_protobuf(client.PullObject, node, context.run_id),
        make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, context.run_id),
        return_type=Message,
        initial_backoff=AGAIN,
        backoff_cap=1.0,
    )
    message.metadata.__dict__["_message_id"] = tree.object_id  # a message does not carry its own id
    return message, context


@contextlib.contextmanager
def signs_of_life(client: RuntimeHttpClient) -> Iterator[None]:
    """While this lasts, tell the SuperNode from time to time that the work goes on."""
    over = threading.Event()

    def live() -> None:
        while not over.wait(BEAT):
            with contextlib.suppress(httpx.HTTPError):
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    thread = threading.Thread(target=live, name="fedframe-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=BEAT)


def what_is_told(error: Exception) -> str:
    """What the organiser learns of an error: any text but that on its own letter may hold names of files or values."""
    if isinstance(error, ProtocolError):
        return str(error)[:500]
    cause = error.__cause__ or error
    if isinstance(cause, OSError) and cause.errno is not None:
        return f"it could not read or write a file ({os.strerror(cause.errno)}); its own log says more"
    return f"it raised {type(cause).__name__}; its own log says more"


def lost(error: Exception) -> str:
    """Why a letter has no answer, for whoever runs the node; the organiser sends another."""
    if isinstance(error, ObjectPullError):
        return (
            "A letter did not arrive whole: the training was stopped or the line was cut while it was sent. It is left "
            "unanswered; the organiser sends a new one."
        )
    return (
        f"A letter or its answer was lost when the SuperNode of this machine ended ({reason(error)}). The organiser "
        "sends a new one."
    )


def reason(error: Exception) -> str:
    """Why, in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
