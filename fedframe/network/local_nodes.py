"""The nodes of a deployment on one machine: each one's folder, and its side of the run from that folder alone."""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedframe.core.job import Job
from fedframe.errors import FedframeError, ProtocolError, RunError
from fedframe.jobs.build import JobMaker
from fedframe.network.engine import NetworkEngine, check_hello, masking_keys
from fedframe.network.node import NodeRuntime, template_digest
from fedframe.network.node_data import read_share, write_share
from fedframe.network.transport import Transport
from fedframe.settings import check
from fedframe.util.files import read_json, write_json
from fedframe.util.locate import own_error

if TYPE_CHECKING:
    from fedframe.network.masker import Masker

RUN = "trial"  # a local deployment's folder is one run's
ERROR = "error.json"  # in a node's folder: what ends the run


def assign_nodes(job: Job, nodes: int) -> list[str]:
    """The node of every client, such that each node gets large and small clients."""
    count = min(nodes, len(job.federation))
    node_of_client = [""] * len(job.federation)
    for position, client in enumerate(job.everyone):
        node_of_client[client] = f"node-{position % count + 1}"
    return node_of_client


def write_node_folders(job: Job, folder: Path, node_of_client: Sequence[str]) -> list[str]:
    """Write every node's own data and settings; returns the nodes' names."""
    names = sorted(set(node_of_client), key=lambda name: int(name.rpartition("-")[2]))
    for name in names:
        clients = [client for client, node in enumerate(node_of_client) if node == name]
        write_share(folder / name / "share.safetensors", job.federation, clients)
        # The share is what is left for training: no part of it is reserved again.
        # Where only some are drawn, a node that mistrusts its organiser trains once more (`Admission.check_step`).
        trusting = {"step_bound": 0.0} if job.settings.participation < 1 else {}
        settings = job.settings.model_copy(update={"validate_share": 0.0, "engine": "local", **trusting})
        run = {"settings": settings.model_dump(mode="json"), "folder": str(job.folder.absolute())}
        write_json(folder / name / "node.json", {"clients": clients, "runs": {RUN: run}})
    return names


@dataclass(frozen=True)
class LocalNodes:
    """A run's nodes on this machine."""

    job: Job
    folder: Path
    node_of_client: list[str]
    nodes: list[str]

    @classmethod
    def create(cls, job: Job) -> LocalNodes:
        """Write the nodes' folders with new keys and ports; what an earlier session left is removed."""
        folder = job.folder.absolute() / "network"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        node_of_client = assign_nodes(job, job.settings.nodes)
        return cls(job, folder, node_of_client, write_node_folders(job, folder, node_of_client))

    def open_engine(self, transport: Transport, notify: Callable[[str], None]) -> NetworkEngine:
        """An engine over these nodes, once every one has said who it is; all ends if one does not fit."""
        engine = NetworkEngine(self.job, transport, self.node_of_client, RUN, notify)
        try:
            replies = engine.hello(len(self.node_of_client))
            check_hello(self.job, replies, template_digest(self.job))
            engine.keys = masking_keys(replies)
        except BaseException:
            engine.close()
            raise
        return engine


def answer(runtime: NodeRuntime, folder: Path, payload: bytes) -> bytes:
    """A node's answer to a request; an error that would only come again is also left in its folder, for the run.

    Organisations tell each other the kind of an error alone. Here all is one user's own.
    """
    try:
        return runtime.handle(payload)[2]
    except ProtocolError:
        raise
    except Exception as error:
        cause = error.__cause__ or error
        if not isinstance(cause, OSError) or own_error(cause) is not None:  # a disk may have room again
            text = str(error) if isinstance(error, FedframeError) else f"{type(error).__name__}: {error}"
            trace = "".join(traceback.format_exception(error))
            write_json(folder / ERROR, {"error": text, "trace": trace})
        raise


def raise_error_of_nodes(folder: Path) -> None:
    """End the run with the error that a node in this folder has left, as it would end without a network."""
    for path in sorted(folder.glob(f"*/{ERROR}")):
        found = read_json(path)
        error = RunError(found["error"])
        error.add_note(found["trace"])
        raise error


def load_node_runtime(folder: Path) -> NodeRuntime:
    """A node's runtime, from its folder."""
    node = read_json(folder / "node.json")
    share = read_share(folder / "share.safetensors")

    def make_job(run: str) -> Job:
        if run not in node["runs"]:
            raise ProtocolError(f"This node knows nothing of a run {run!r}.")
        given = node["runs"][run]
        # On one machine clients' private state and personal models lie where those of a local run would.
        return JobMaker(check(given["settings"]), share, None).make(Path(given["folder"]), folder)

    def masker() -> Masker:
        from fedframe.network.masker import Masker

        return Masker(folder, lambda text: print(text, flush=True))

    return NodeRuntime(make_job, node["clients"], masker=masker)
