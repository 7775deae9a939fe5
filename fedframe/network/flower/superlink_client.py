"""The organiser's client of a SuperLink: registers nodes, opens a run, and is its ServerApp in this very process.

Flower would start a new process for a ServerApp and ship code to nodes. Here the process that trains claims the task
itself (what Flower calls isolation "process"), so that progress, Ctrl-C, the run folder and resuming are those of any
run. The connection is loopback only and carries a secret; see `superlink.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import SubStatus
from flwr.common.serde import context_from_proto, fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from fedframe.errors import RunError
from fedframe.network.flower.reachability import is_foreign_certificate, is_refused, one_line
from fedframe.network.flower.superlink import HEADER

HEARTBEAT_INTERVAL = 15.0  # seconds; Flower gives a task up after twice 30
OPEN_TIMEOUT = 60.0  # seconds in which a SuperLink opens a run
APP = b"""[project]
name = "fedframe"
version = "1.0.0"
description = "An empty app: nodes run the Fedframe that is installed there, never code that is sent"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "fedframe"
[tool.flwr.app.components]
serverapp = "fedframe.none:app"
clientapp = "fedframe.none:app"
"""


UNREGISTERED = "unregistered"  # the state of a node that may not come back


def key_bytes(public_key: bytes) -> bytes:
    """A key in OpenSSH form as the SuperLink keeps it."""
    return bytes(public_key_to_bytes(load_ssh_public_key(public_key)))  # type: ignore[arg-type]


class SuperLinkClient:
    """A client of the SuperLink at an address of this machine."""

    def __init__(self, address: str, ca: bytes, secret: str, serve_command: str = "") -> None:
        self.address, self.ca, self.secret = address, ca, secret
        self.serve_command = serve_command  # starts this SuperLink, named where there is none
        self.control = self._client(ControlHttpClient)

    def close(self) -> None:
        """Close the connection."""
        self.control.close()

    def nodes(self) -> dict[str, Any]:
        """All registered nodes by name, with their state."""
        found = self._call(lambda: self.control.ListNodes(ListNodesRequest()))
        # The SuperLink lists those that were unregistered for ever; another node may have the name by now.
        return {node.name: node for node in found.nodes_info if node.status != UNREGISTERED}

    def register(self, name: str, public_key: bytes) -> None:
        """Admit the holder of a key (in OpenSSH form), under this name."""
        key = key_bytes(public_key)
        self._call(lambda: self.control.RegisterNode(RegisterNodeRequest(public_key=key, name=name)))

    def unregister(self, node: Any) -> None:
        """Let a node of `nodes` in no more."""
        self._call(lambda: self.control.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id)))

    def holds(self, node: Any, public_key: bytes) -> bool:
        """Whether a node of `nodes` was registered with this key (in OpenSSH form)."""
        return bool(node.public_key == key_bytes(public_key))

    def open_run(self) -> ServerTask:
        """Open a run and claim its ServerApp for this process."""
        self.stop_stale_runs()
        content, _ = build_fab_from_files({"pyproject.toml": APP})
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        started = self._call(lambda: self.control.StartRun(StartRunRequest(fab=fab_to_proto(fab))))
        runtime = self._client(RuntimeHttpClient)
        try:
            wanted = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
            deadline = time.monotonic() + OPEN_TIMEOUT
            while time.monotonic() < deadline:
                found = self._call(lambda: runtime.AcquireTask(wanted))
                if found.HasField("task") and found.task.run_id == started.run_id:
                    return ServerTask(self, found.token)
                time.sleep(0.2)
        finally:
            runtime.close()
        raise RunError("The SuperLink did not open the run within a minute; look at its log.")

    def stop_stale_runs(self) -> None:
        """End runs whose process is gone: nodes would wait a minute for the rest of a message that is never sent."""
        known = self._call(lambda: self.control.ListRuns(ListRunsRequest(limit=10)))
        for number, run in known.run_dict.items():
            if run.status.status != "finished":
                with contextlib.suppress(RunError):
                    self._call(lambda number=number: self.control.StopRun(StopRunRequest(run_id=number)))

    def add_secret(self, client: Any) -> None:
        """Send the organiser's secret with every request of a Flower client."""
        client._client.headers[HEADER] = self.secret

    def _client(self, kind: Any) -> Any:
        client = kind.from_server_address(
            self.address, False, self.ca, interceptors=[RuntimeVersionHttpInterceptor(component_name="fedframe")]
        )
        self.add_secret(client)
        return client

    def _call(self, call: Any) -> Any:
        try:
            return call()
        except httpx.HTTPStatusError as error:
            raise RunError(f"The SuperLink refused: {error.response.text[:300]}") from error
        except httpx.HTTPError as error:
            raise RunError(self._unreachable(error)) from error

    def _unreachable(self, error: httpx.HTTPError) -> str:
        start = f"start it with '{self.serve_command}'" if self.serve_command else "start it first"
        if is_foreign_certificate(error):
            return (
                f"Another federation is served at {self.address}: its certificate is not of this one. Stop that one "
                f"first ('fedframe federation stop' with its folder), then {start}."
            )
        if is_refused(error):
            return f"There is no SuperLink at {self.address}; {start}."
        return f"The SuperLink at {self.address} does not answer ({one_line(error)}); is it running? If not, {start}."


class ServerTask:
    """A run's ServerApp in this process: its grid, and a heartbeat."""

    def __init__(self, superlink: SuperLinkClient, token: str) -> None:
        self.grid = HttpGrid(superlink.address, False, superlink.ca, token=token)
        # Flower's own retrying would wait for ever, and raise Ctrl-C here when a run is over.
        self.grid._retry_invoker = None  # type: ignore[assignment]
        self._client = self.grid._runtime_client
        superlink.add_secret(self._client)
        given = self._client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
        TaskIdentity.node_id = given.context.node_id
        self.context = context_from_proto(given.context)
        self.grid.set_run(run_from_proto(given.run))
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._send_heartbeats, name="fedframe-heartbeat", daemon=True)
        self._thread.start()

    def close(self, finished: bool = True) -> None:
        """Tell the SuperLink how the run ended; once closed, there is nothing left to tell."""
        if self._finished.is_set():
            return
        self._finished.set()
        self._thread.join(timeout=HEARTBEAT_INTERVAL)
        status = SubStatus.COMPLETED if finished else SubStatus.STOPPED
        with contextlib.suppress(httpx.HTTPError):
            self._client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=""))
        self.grid.close()

    def _send_heartbeats(self) -> None:
        while not self._finished.wait(HEARTBEAT_INTERVAL):
            # A SuperLink that is gone is noticed, and reported, when the next request is sent.
            with contextlib.suppress(httpx.HTTPError):
                self._client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
