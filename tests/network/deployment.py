"""Real processes for tests: a SuperLink and nodes on loopback, for several runs one after the other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedframe.core.job import Job
from fedframe.jobs.build import JobMaker
from fedframe.jobs.gather import gather
from fedframe.network.engine import NetworkEngine, masking_keys
from fedframe.network.flower.local_deployment import LocalTransport
from fedframe.network.local_nodes import assign_nodes, write_node_folders
from fedframe.runs.folder import RunFolder
from fedframe.runs.session import execute
from fedframe.util.files import read_json, write_json
from tests.helpers import Recorder

TASK: dict[str, Any] = {
    "data": "digits", "partition": "dirichlet:0.3", "clients": 3, "data_share": 0.2, "rounds": 2, "epochs": 2,
    "model": "mlp:32", "workers": 1, "min_client_size": 8,
}  # fmt: skip


def make(method: str, folder: Path, **settings: Any) -> tuple[Job, RunFolder]:
    """A small run that is about to begin."""
    maker = JobMaker(gather({**TASK, "method": method, **settings}, None), None, None)
    run = RunFolder.create(folder, maker.settings)
    run.write_settings(maker.settings)
    return maker.make(run.path), run


# What every process of the network does in secret, written down: whom it calls, and what a pickle would load.
WATCH = """
import os, sys

def write(event, what):
    file = os.open(os.environ["FEDFRAME_AUDIT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{os.getpid()} {event} {what!r}\\n".encode())
    os.close(file)

def look(event, given):
    if event in ("socket.connect", "socket.getaddrinfo", "pickle.find_class"):
        write(event, given[1] if event == "socket.connect" else given[:2])

sys.addaudithook(look)
write("started", sys.orig_argv[1:3])
"""


@contextlib.contextmanager
def watched(folder: Path, log: Path) -> Iterator[None]:
    """Have Python processes that are started meanwhile write down what they do."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WATCH)
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "FEDFRAME_AUDIT")}
    paths = [str(folder), *filter(None, [before["PYTHONPATH"]])]
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "FEDFRAME_AUDIT": str(log)}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


class Network:
    """Three nodes with the data of `TASK`; runs are told to them beforehand, and each is opened by its name."""

    def __init__(self, folder: Path, runs: dict[str, dict[str, Any]]) -> None:
        self.folder = folder / "network"
        self.folder.mkdir(parents=True)
        self.runs = {name: make(given.pop("method"), folder / name, **given) for name, given in runs.items()}
        job = next(iter(self.runs.values()))[0]
        self.node_of_client = assign_nodes(job, 3)
        names = write_node_folders(job, self.folder, self.node_of_client)
        told = {
            run: {"settings": job.settings.model_dump(mode="json"), "folder": str(job.folder)}
            for run, (job, _) in self.runs.items()
        }
        for name in names:
            path = self.folder / name / "node.json"
            write_json(path, {**read_json(path), "runs": told})
        self.audit = folder / "audit.txt"
        with watched(folder / "watch", self.audit):
            self.transport = LocalTransport(self.folder)
            self.transport.open(names)

    def execute(self, run: str) -> tuple[RunFolder, Recorder]:
        """Run one of the runs to its end."""
        job, folder = self.runs[run]
        display = Recorder()
        execute(job, folder, display, lambda job, note: self.engine(run))
        return folder, display

    def engine(self, run: str) -> NetworkEngine:
        """An engine for a run, over a Flower run of its own."""
        job, _ = self.runs[run]
        assert self.transport.superlink is not None
        if self.transport.task is not None:
            self.transport.task.close()
        self.transport.task = self.transport.superlink.open_run()
        self.transport.grid = self.transport.task.grid
        engine = StayingEngine(job, self.transport, self.node_of_client, run, print)
        engine.keys = masking_keys(engine.hello(len(self.node_of_client)))
        return engine


class StayingEngine(NetworkEngine):
    """An engine that leaves the network as it is."""

    def close(self) -> None:
        return
