"""A whole federation on this machine, for trying out: a SuperLink, SuperNodes and nodes as real processes, over TLS
with keys, on loopback and free ports. Everything is under the run folder, and everything ends with the run.
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
from fedframe.network.flower.superlink_client import Link, ServerTask
from fedframe.network.flower.transport import FlowerTransport
from fedframe.network.local_nodes import Trial
from fedframe.network.transport import Delivery
from fedframe.util.processes import Child, end_all, free_ports, wait_for_port


class LocalTransport(FlowerTransport):
    """The post of a trial: Flower's, and the processes that it stands on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(None)
        self.folder = folder
        self.children: list[Child] = []
        self.link: Link | None = None
        self.task: ServerTask | None = None

    def open(self, names: Collection[str]) -> None:
        """Start everything; what was started ends if something cannot be."""
        try:
            (port,) = free_ports(1)
            make_certificates(self.folder, ["127.0.0.1"], "trial")
            secret = secrets.token_hex(32)
            write_secret(self.folder / "organiser.secret", secret.encode())
            superlink = start_superlink(self.folder, "127.0.0.1", port)
            self.children.append(superlink)
            wait_for_port(superlink, "127.0.0.1", port)
            self.link = Link(f"127.0.0.1:{port}", (self.folder / "ca.pem").read_bytes(), secret)
            for name in names:
                make_node_key(self.folder / name / "node.key", self.folder / name / "node.pub")
                self.link.register(name, (self.folder / name / "node.pub").read_bytes())
                command = [
                    sys.executable,
                    "-m",
                    "fedframe.network.flower.local_node",
                    str(self.folder),
                    name,
                    str(port),
                ]
                self.children.append(Child(command, self.folder / name / "log.txt", environment(self.folder / name)))
            self.task = self.link.open_run()
            self.grid = self.task.grid
        except BaseException:
            self.close()
            raise

    def nodes(self) -> Collection[str]:
        """Names of the nodes that are connected."""
        self.check_alive()
        return super().nodes()

    def collect(self, tickets: Mapping[str, int]) -> list[Delivery]:
        """As Flower does, for as long as all processes live."""
        self.check_alive()
        return super().collect(tickets)

    def check_alive(self) -> None:
        """End the run if a process has ended: nobody but the run would start it again."""
        for child in self.children:
            if not child.alive:
                who = child.log.parent.name if child.log.parent != self.folder else "the SuperLink"
                raise RunError(
                    f"The process of {who} {child.ending()} (see {child.log}); fewer nodes take less memory."
                )

    def processes(self) -> list[int]:
        """Ids of all processes of the trial."""
        return [child.pid for child in self.children if child.alive]

    def close(self) -> None:
        """End the run at the SuperLink, then all processes."""
        try:
            if self.task is not None:
                self.task.close()
            if self.link is not None:
                self.link.close()
        finally:
            end_all(self.children[::-1])  # nodes first: they would only complain that their SuperLink is gone


def start_superlink(folder: Path, host: str, port: int, state: Path | None = None) -> Child:
    """Start a SuperLink from the keys in a folder; its database and log go to another, or to the same."""
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
    return Child(command, state / "superlink.log", environment(state / "flower"))


def open_here(job: Job, note: Callable[[str], None]) -> NetworkEngine:
    """Start a trial and wait until every node has said who it is."""
    trial = Trial.laid_out(job)
    note(f"Starting a SuperLink and {len(trial.nodes)} nodes on this machine; their logs are in {trial.folder}.")
    post = LocalTransport(trial.folder)
    post.open(trial.nodes)
    return trial.engine(post, note)
