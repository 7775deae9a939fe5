"""The engine `flower-sim`: Flower's simulation; its nodes are Ray's processes here or, with RAY_ADDRESS, on a cluster.

Flower wants to call the server; our loop wants to call Flower. So the simulation runs in a thread of its own, whose
ServerApp passes its grid on and waits until the run is over.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedframe.core.job import Job
from fedframe.errors import RunError, SettingError
from fedframe.network.engine import NetworkEngine
from fedframe.network.flower.records import to_record
from fedframe.network.flower.sim_app import WHERE, app
from fedframe.network.flower.transport import DEFAULT_TTL, FlowerTransport, part_of_sentence, to_delivery
from fedframe.network.local_nodes import LocalNodes, raise_error_of_nodes
from fedframe.network.transport import Delivery

CLUSTER_TIMEOUT = 10.0  # seconds in which a cluster must answer
START_TIMEOUT = 900.0  # seconds in which Ray and its nodes must have started: only what hangs takes so long
MOST_LOST = 2  # requests in a row that each node may lose: Flower starts no other process for one that Ray has ended


class SimulationTransport(FlowerTransport):
    """Carries requests to simulated nodes."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder = folder
        self._grids: Queue[Grid] = Queue()
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._lost = 0  # requests in a row of which nothing came back
        self._thread = threading.Thread(target=self._simulate, args=(nodes,), name="flower-simulation", daemon=True)
        self._thread.start()
        self._names: dict[int, str] = {}
        try:
            super().__init__(self._receive_grid(), lambda node: self._names.get(int(node.node_id), ""))
            self._identify_nodes(nodes)
        except BaseException:
            self.close()  # else Flower's threads keep this process alive
            raise

    def send(self, node: str, payload: bytes, round: int, timeout: float | None) -> str:
        """Push a message with the payload, and where the nodes' folders are."""
        record = to_record(payload)
        record[WHERE] = ConfigRecord({"folder": str(self.folder)})
        ttl = timeout if timeout is not None else DEFAULT_TTL
        message = Message(record, self._ids[node], "train", ttl=ttl, group_id=str(round))
        return str(next(iter(self.grid.push_messages([message]))))

    def collect(self, tickets: Mapping[str, int]) -> list[Delivery]:
        """Pull replies as Flower does, unchecked: these nodes are processes of our own."""
        self._check_alive()
        messages = self.grid.pull_messages(list(tickets))
        found = [to_delivery(message.metadata.reply_to_message_id, message) for message in messages]
        if any(delivery.problem for delivery in found):
            raise_error_of_nodes(self.folder)
        for message in messages:
            self._count_lost(message)
        return found

    def _count_lost(self, message: Message) -> None:
        """End the run when no process is left that could answer: asking again would go on for ever."""
        lost = message.has_error() and message.error.code == ErrorCode.UNKNOWN  # an error of a node's has another code
        self._lost = self._lost + 1 if lost else 0
        if self._lost > MOST_LOST * len(self._names):
            reason = part_of_sentence(message.error.reason or "")
            raise RunError(
                f"The simulation has lost the processes of its nodes ({reason}). Ray ends them when memory runs short: "
                "free some, or use fewer nodes."
            )

    def nodes(self) -> Collection[str]:
        """Names of all simulated nodes."""
        self._check_alive()
        return super().nodes()

    def _check_alive(self) -> None:
        if not self._thread.is_alive():
            raise RunError(f"The simulation ended: {self._failure}.")

    def close(self) -> None:
        """Let the simulation end, and Ray with it."""
        self._stopping.set()
        self._thread.join(timeout=60)

    def _simulate(self, nodes: int) -> None:
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            self._grids.put(grid)
            self._stopping.wait()

        resources: dict[str, Any] = {
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"log_to_driver": False, "logging_level": "error"},
        }
        logging.getLogger("flwr").setLevel(logging.ERROR)  # run_simulation says at length that it is old
        try:
            run_simulation(server, app, nodes, backend_config=resources)
        except BaseException as error:
            self._failure = error

    def _receive_grid(self) -> Grid:
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline and self._thread.is_alive():
            try:
                return self._grids.get(timeout=0.5)
            except Empty:
                continue
        self._stopping.set()
        raise RunError(f"Flower's simulation did not start: {self._failure or 'too slow'}.")

    def _identify_nodes(self, nodes: int) -> None:
        """Ask the nodes who they are: Flower gives them ids of its own."""
        deadline = time.monotonic() + START_TIMEOUT
        while len(ids := [int(node.node_id) for node in self.grid.get_nodes()]) < nodes:
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise RunError(f"Flower's simulation has no nodes: {self._failure or 'too slow'}.")
            time.sleep(0.2)
        query = RecordDict({WHERE: ConfigRecord({"number": -1})})
        waiting = set(self.grid.push_messages([Message(query, node, "query", group_id="0") for node in ids]))
        while waiting:
            for message in self.grid.pull_messages(list(waiting)):
                waiting.discard(message.metadata.reply_to_message_id)
                if message.has_error():
                    raise RunError(f"A simulated node could not start: {message.error.reason}.")
                number = int(message.content.config_records[WHERE]["number"])
                self._names[int(message.metadata.src_node_id)] = f"node-{number + 1}"
            if time.monotonic() > deadline:
                raise RunError("The simulated nodes did not say who they are in time; is the machine out of memory?")
            time.sleep(0.1)


def check_cluster(address: str) -> None:
    """Refuse a cluster that is not there: Ray would look for it for minutes, and not say so."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():  # none, or one that Ray has to find itself, such as auto
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CLUSTER_TIMEOUT).close()
    except (OSError, OverflowError) as error:
        raise SettingError(
            f"RAY_ADDRESS = {address!r}: nothing listens there; start a cluster (ray start --head --port {port}), or "
            "unset RAY_ADDRESS to simulate on this machine alone."
        ) from error


def open_simulation(job: Job, notify: Callable[[str], None]) -> NetworkEngine:
    """Start a simulation and wait until its nodes are there."""
    check_cluster(os.environ.get("RAY_ADDRESS", ""))
    local = LocalNodes.create(job)
    notify(f"Starting Flower's simulation with {len(local.nodes)} nodes.")
    return local.open_engine(SimulationTransport(local.folder, len(local.nodes)), notify)
