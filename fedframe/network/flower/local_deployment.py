"""A whole federation on this machine, to try one out: a SuperLink, SuperNodes and nodes as real processes, over TLS
with keys, on loopback and free ports. All files are in the run folder, and all processes end with the run.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from fedframe.core.job import Job
from fedframe.errors import RunError
from fedframe.network.certificates import make_certificates, make_node_key, write_secret
from fedframe.network.engine import NetworkEngine
from fedframe.network.flower.environment import environment
from fedframe.network.flower.superlink_client import ServerTask, SuperLinkClient
from fedframe.network.flower.transport import FlowerTransport
from fedframe.network.local_nodes import LocalNodes, raise_error_of_nodes
from fedframe.network.transport import Delivery
from fedframe.util.processes import ChildProcess, free_ports, stop_all, wait_for_port


class LocalTransport(FlowerTransport):
    """Flower's transport, and the processes of a local deployment that it needs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(None)
        self.folder = folder
        self.children: list[ChildProcess] = []
        self.superlink: SuperLinkClient | None = None
        self.task: ServerTask | None = None

    def open(self, names: Collection[str]) -> None:
        """Start everything; if something cannot be started, end what was."""
        try:
            (port,) = free_ports(1)
            make_certificates(self.folder, ["127.0.0.1"], "trial")
            secret = secrets.token_hex(32)
            write_secret(self.folder / "organiser.secret", secret.encode())
            process = start_superlink(self.folder, "127.0.0.1", port)
            self.children.append(process)
            wait_for_port(process, "127.0.0.1", port)
            self.superlink = SuperLinkClient(f"127.0.0.1:{port}", (self.folder / "ca.pem").read_bytes(), secret)
            for name in names:
                make_node_key(self.folder / name / "node.key", self.folder / name / "node.pub")
                self.superlink.register(name, (self.folder / name / "node.pub").read_bytes())
                command = [
                    sys.executable,
                    "-m",
                    "fedframe.network.flower.local_node",
                    str(self.folder),
                    name,
                    str(port),
                ]
                self.children.append(
                    ChildProcess(command, self.folder / name / "log.txt", environment(self.folder / name))
                )
            self.task = self.superlink.open_run()
            self.grid = self.task.grid
        except BaseException:
            self.close()
            raise

    def nodes(self) -> Collection[str]:
        """Names of the nodes that are connected."""
        self.check_alive()
        return super().nodes()

    def collect(self, tickets: Mapping[str, int]) -> list[Delivery]:
        """Collect as Flower does, for as long as all processes live and no node's own code has failed."""
        self.check_alive()
        found = super().collect(tickets)
        if any(delivery.problem for delivery in found):
            raise_error_of_nodes(self.folder)
        return found

    def check_alive(self) -> None:
        """End the run if a process has ended: nothing would start it again."""
        for child in self.children:
            if not child.alive:
                who = child.log.parent.name if child.log.parent != self.folder else "the SuperLink"
                raise RunError(
                    f"The process of {who} {child.how_it_ended()} (see {child.log}); fewer nodes take less memory."
                )

    def processes(self) -> list[int]:
        """Ids of all processes of the deployment."""
        return [child.pid for child in self.children if child.alive]

    def close(self) -> None:
        """End the run at the SuperLink, then all processes."""
        try:
            if self.task is not None:
                self.task.close()
            if self.superlink is not None:
                self.superlink.close()
        finally:
            stop_all(self.children[::-1])  # nodes first: they would only log that their SuperLink is gone


def start_superlink(folder: Path, host: str, port: int, state: Path | None = None) -> ChildProcess:
    """Start a SuperLink with the keys in a folder; its database and log go to `state`, by default the same folder."""
    state = state or folder
    command = [
        sys.executable, "-m", "fedframe.network.flower.superlink", str(folder / "organiser.secret"),
        "--host", host,
        "--port", str(port),
        "--ssl-ca-certfile", str(folder / "ca.pem"),
        "--ssl-certfile", str(folder / "server.pem"),
        "--ssl-keyfile", str(folder / "server.key"),
        "--enable-supernode-auth",
        "--database", str(state / "superlink.db"),
        "--isolation", "process",
        "--disable-runtime-dependency-installation",
    ]  # fmt: skip
    return ChildProcess(command, state / "superlink.log", environment(state / "flower"))


def open_local_deployment(job: Job, notify: Callable[[str], None]) -> NetworkEngine:
    """Start a local deployment and wait until every node has said who it is."""
    local = LocalNodes.create(job)
    notify(f"Starting a SuperLink and {len(local.nodes)} nodes on this machine; their logs are in {local.folder}.")
    transport = LocalTransport(local.folder)
    transport.open(local.nodes)
    return local.open_engine(transport, notify)
