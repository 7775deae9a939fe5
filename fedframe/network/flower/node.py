"""A node: a Flower SuperNode beside this process, and this process instead of the ClientApp.

Flower would start a new Python process for every message and run code that the SuperLink sends. Here the process that
holds the data claims each message from its own SuperNode (what Flower calls isolation "process"): code that is sent is
never unpacked, data and model stay in memory, and a round starts no process. The SuperNode is restarted with growing
delays for as long as it takes.
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
from fedframe.network.flower.reachability import connection_problem, one_line
from fedframe.network.flower.records import from_record, to_record
from fedframe.util.processes import ChildProcess, free_ports, wait_for_port

POLL_INTERVAL = 0.4  # seconds between two polls for a message: a poll costs two processes a few milliseconds
FIRST_BACKOFF = 0.1  # seconds before a piece of a message is asked for the second time
HEARTBEAT_INTERVAL = 15.0  # seconds
RESTART_DELAYS = (2.0, 5.0, 10.0, 20.0, 30.0)  # seconds before a SuperNode is started again
STABLE_AFTER = 120.0  # seconds after which a SuperNode counts as stable and delays begin again
MAX_REASON_LENGTH = 300  # characters
Handler = Callable[[bytes], bytes]


@dataclass(frozen=True)
class NodeConfig:
    """What a node needs to reach its federation."""

    address: str
    ca: Path
    key: Path
    folder: Path  # for its log and Flower's own files
    name: str = "this node"


class Node:
    """A SuperNode and the loop that answers its messages."""

    def __init__(
        self,
        config: NodeConfig,
        handle: Handler,
        notify: Callable[[str], None],
        on_error: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.config, self.handle, self._notify = config, handle, notify
        self.on_error = on_error  # is given what the organiser learns of an error, before it leaves
        self.secret = secrets.token_bytes(32)
        self.child: ChildProcess | None = None
        self.reporter = ConnectionReporter(
            config.address, config.name, self.notify, lambda: connection_problem(config.address, config.ca)
        )
        self.stopping = threading.Event()
        self.lock = threading.Lock()  # one request at a time: there is one model and one private state

    def notify(self, text: str) -> None:
        """Report what happened; that it cannot be written (a full disk) is no reason to stop."""
        with contextlib.suppress(OSError):
            self._notify(text)

    # -- the SuperNode -------------------------------------------------------------------------------------------------
    def start_supernode(self) -> RuntimeHttpClient:
        """Start the SuperNode; its Runtime interface is on loopback and requires a secret."""
        folder = self.config.folder
        secret = folder / "executor.secret"
        write_secret(secret, self.secret)
        (port,) = free_ports(1)
        command = [
            sys.executable, "-m", "fedframe.network.flower.supernode",
            "--superlink", self.config.address,
            "--root-certificates", str(self.config.ca),
            "--auth-supernode-private-key", str(self.config.key),
            "--isolation", "process",
            "--superexec-auth-secret-file", str(secret),
            "--host", "127.0.0.1",
            "--port", str(port),
        ]  # fmt: skip
        self.child = ChildProcess(command, folder / "supernode.log", environment(folder / "flower"))
        wait_for_port(self.child, "127.0.0.1", port, self.stopping)
        self.port = port
        return self.connect(
            SuperExecAuthHttpInterceptor(
                master_secret=self.secret, protected_methods={"/flwr.proto.Runtime/AcquireTask"}
            )
        )

    def connect(self, *interceptors: Any) -> RuntimeHttpClient:
        """A client of the SuperNode."""
        version = RuntimeVersionHttpInterceptor(component_name="fedframe")
        return RuntimeHttpClient.from_server_address(f"127.0.0.1:{self.port}", True, None, [version, *interceptors])

    def serve_forever(self) -> None:
        """Serve until `stopping` is set; whatever becomes of the SuperNode, it is started again."""
        failures = 0
        try:
            while not self.stopping.is_set():
                began = time.monotonic()
                try:
                    self.serve()
                except (RunError, httpx.HTTPError) as error:
                    failures = 0 if time.monotonic() - began > STABLE_AFTER else failures
                    delay = RESTART_DELAYS[min(failures, len(RESTART_DELAYS) - 1)]
                    failures += 1
                    log = self.child.log_tail() if self.child is not None else ""
                    self.reporter.supernode_ended(log, one_line(error, MAX_REASON_LENGTH))
                    self.stopping.wait(delay)
                finally:
                    self.stop_supernode()
        finally:
            self.stop_supernode()

    def serve(self) -> None:
        """Answer messages for as long as the SuperNode lives."""
        self.reporter.check()  # starting takes a while: report first what can be known
        client = self.start_supernode()
        wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        with contextlib.closing(client):
            while not self.stopping.is_set():
                assert self.child is not None
                if not self.child.alive:
                    raise RunError(f"the SuperNode of this machine {self.child.how_it_ended()} (see {self.child.log})")
                self.reporter.read_log(self.child.log_tail())
                found = client.AcquireTask(wanted)
                if found.HasField("task") and found.token:
                    # A thread for each: a message whose sender died while sending it never becomes whole, and the
                    # next one must not wait for it.
                    name = f"fedframe-task-{found.task.task_id}"
                    threading.Thread(target=self.handle_task, args=(found.token,), name=name, daemon=True).start()
                else:
                    self.stopping.wait(POLL_INTERVAL)

    def stop_supernode(self) -> None:
        """End the SuperNode."""
        if self.child is not None:
            self.child.stop()
            self.child = None

    # -- one message ---------------------------------------------------------------------------------------------------
    def handle_task(self, token: str) -> None:
        """Pull the message of a claimed task and push the reply; what goes wrong becomes an error reply."""
        client = self.connect(RuntimeTokenHttpInterceptor(token))
        try:
            with contextlib.closing(client), heartbeat(client):
                message, context = pull_message(client)
                with self.lock:
                    reply = self.reply(message)
                push_message(client, reply, context)
                push_task_output(client, context, SubStatus.COMPLETED, "")
        except (httpx.HTTPError, ObjectPullError, RunError) as error:
            self.notify(describe_lost_request(error))

    def reply(self, message: Message) -> Message:
        """The reply to a message, or one sentence on why there is none."""
        try:
            return Message(to_record(self.handle(from_record(message.content))), reply_to=message)
        except Exception as error:  # whatever a net or a disk does, the node stays
            self.notify(f"A message could not be answered: {type(error).__name__}: {error}")
            reason = public_reason(error)
        with contextlib.suppress(OSError):  # on a full disk the organiser should learn at least that it is full
            self.on_error(reason)
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


def pull_message(client: RuntimeHttpClient) -> tuple[Message, Context]:
    """The message of a claimed task, once the SuperNode has all its pieces; code that came with it is ignored."""
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
        initial_backoff=FIRST_BACKOFF,
        backoff_cap=1.0,
    )
    message.metadata.__dict__["_message_id"] = tree.object_id  # a message does not carry its own id
    return message, context


@contextlib.contextmanager
def heartbeat(client: RuntimeHttpClient) -> Iterator[None]:
    """While the context lasts, tell the SuperNode from time to time that the work goes on."""
    finished = threading.Event()

    def send_heartbeats() -> None:
        while not finished.wait(HEARTBEAT_INTERVAL):
            with contextlib.suppress(httpx.HTTPError):
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    thread = threading.Thread(target=send_heartbeats, name="fedframe-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join(timeout=HEARTBEAT_INTERVAL)


def public_reason(error: Exception) -> str:
    """What the organiser learns of an error: any text but one on its own request may hold names of files or values."""
    if isinstance(error, ProtocolError):
        return str(error)[:500]
    cause = error.__cause__ or error
    if isinstance(cause, OSError) and cause.errno is not None:
        return f"it could not read or write a file ({os.strerror(cause.errno)}); its own log says more"
    return f"it raised {type(cause).__name__}; its own log says more"


def describe_lost_request(error: Exception) -> str:
    """Why a request has no answer, for the people at the node; the organiser sends another."""
    if isinstance(error, ObjectPullError):
        return (
            "A message did not arrive whole: the training was stopped or the line was cut while it was sent. It is "
            "left unanswered; the organiser sends a new one."
        )
    return (
        "A message or its answer was lost when the SuperNode of this machine ended "
        f"({one_line(error, MAX_REASON_LENGTH)}). The organiser sends a new one."
    )
