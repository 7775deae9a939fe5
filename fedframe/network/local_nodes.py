"""The nodes of a trial on one machine: what each is told, as a file, and its side of the run from that file alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedframe.core.job import Job
from fedframe.errors import ProtocolError
from fedframe.jobs.build import JobMaker
from fedframe.network.engine import NetworkEngine, check_hello, keys_of
from fedframe.network.node import NodeRuntime, template_digest
from fedframe.network.node_data import read_share, write_share
from fedframe.network.transport import Transport
from fedframe.settings import check
from fedframe.util.files import read_json, write_json

if TYPE_CHECKING:
    from fedframe.network.masks import Masker

RUN = "trial"  # a trial's folder is one run's


def deal(job: Job, nodes: int) -> list[str]:
    """The node of every client: large and small ones everywhere."""
    count = min(nodes, len(job.federation))
    seats = [""] * len(job.federation)
    for place, client in enumerate(job.everyone):
        seats[client] = f"node-{place % count + 1}"
    return seats


def write_nodes(job: Job, folder: Path, seats: Sequence[str]) -> list[str]:
    """Write every node's own data and what it must know; returns the nodes' names."""
    names = sorted(set(seats), key=lambda name: int(name.rpartition("-")[2]))
    for name in names:
        clients = [client for client, seat in enumerate(seats) if seat == name]
        write_share(folder / name / "share.safetensors", job.federation, clients)
        # The share is what is left for training: no part of it is put aside again.
        settings = job.settings.model_copy(update={"validate_share": 0.0, "engine": "local"})
        run = {"settings": settings.model_dump(mode="json"), "folder": str(job.folder.absolute())}
        write_json(folder / name / "node.json", {"clients": clients, "runs": {RUN: run}})
    return names


@dataclass(frozen=True)
class Trial:
    """A run's nodes on this machine."""

    job: Job
    folder: Path
    seats: list[str]  # the node of every client
    nodes: list[str]

    @classmethod
    def laid_out(cls, job: Job) -> Trial:
        """Write what the nodes are told; what an earlier session left is removed, keys and ports are made anew."""
        folder = job.folder.absolute() / "network"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        seats = deal(job, job.settings.nodes)
        return cls(job, folder, seats, write_nodes(job, folder, seats))

    def engine(self, post: Transport, note: Callable[[str], None]) -> NetworkEngine:
        """An engine over these nodes, once every one has said who it is; all ends if one does not fit."""
        engine = NetworkEngine(self.job, post, self.seats, RUN, note)
        try:
            said = engine.hello(len(self.seats))
            check_hello(self.job, said, template_digest(self.job))
            engine.keys = keys_of(said)
        except BaseException:
            engine.close()
            raise
        return engine


def node_work(folder: Path) -> NodeRuntime:
    """A node's work, from its folder."""
    told = read_json(folder / "node.json")
    share = read_share(folder / "share.safetensors")

    def make_job(run: str) -> Job:
        if run not in told["runs"]:
            raise ProtocolError(f"This node knows nothing of a run {run!r}.")
        asked = told["runs"][run]
        # On one machine clients' private state and personal models lie where those of a local run would.
        return JobMaker(check(asked["settings"]), share, None).make(Path(asked["folder"]), folder)

    def masker() -> Masker:
        from fedframe.network.masks import Masker

        return Masker(folder, lambda text: print(text, flush=True))

    return NodeRuntime(make_job, told["clients"], masker=masker)
