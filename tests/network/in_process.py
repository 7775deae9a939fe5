"""A transport without a network: nodes in this process, each with nothing but its own share of the data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fedframe.network.engine as engine_module
from fedframe.core.job import Job
from fedframe.errors import FedframeError
from fedframe.jobs.build import JobMaker
from fedframe.jobs.gather import gather
from fedframe.network.engine import NetworkEngine, masking_keys
from fedframe.network.masker import Masker
from fedframe.network.node import NodeRuntime
from fedframe.network.node_data import read_share, write_share
from fedframe.network.transport import Delivery
from fedframe.runs.folder import RunFolder

TASK: dict[str, Any] = {
    "data": "digits", "partition": "dirichlet:0.3", "clients": 4, "data_share": 0.2, "rounds": 3, "epochs": 2,
    "model": "mlp:32", "workers": 1, "min_client_size": 8,
}  # fmt: skip
Spoil = Callable[[str, bytes], bytes | str | None]  # of a node's answer: another one, a problem, or nothing at all


def make(method: str, folder: Path, **settings: Any) -> tuple[Job, RunFolder]:
    """A small run that is about to begin."""
    maker = JobMaker(gather({**TASK, "method": method, **settings}, None), None, None)
    run = RunFolder.create(folder, maker.settings)
    job = maker.make(run.path)
    run.write_settings(job.settings)
    return job, run


class Clock:
    """The module `time` as the engine sees it: sleeping takes no time, and a busy machine changes nothing."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleeps: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The engine's clock, in every test of a module that imports this."""
    made = Clock()
    monkeypatch.setattr(engine_module, "time", made)
    return made


class InProcessTransport:
    """Carries requests to nodes in this process; `spoil` may do to an answer what a network or a stranger would."""

    def __init__(self, nodes: Mapping[str, NodeRuntime], spoil: Spoil | None = None) -> None:
        self.known, self.spoil = dict(nodes), spoil
        self.away: set[str] = set()
        self.notes: list[str] = []
        self.sent: list[tuple[str, int]] = []
        self._waiting: dict[str, Delivery] = {}

    def nodes(self) -> Collection[str]:
        return self.known.keys() - self.away

    def send(self, node: str, payload: bytes, round: int, timeout: float | None) -> str:
        ticket = str(len(self.sent))
        self.sent.append((node, round))
        content: bytes | str | None
        try:
            content = self.known[node].handle(payload)[2]
        except FedframeError as error:
            content = str(error)
        if self.spoil is not None and isinstance(content, bytes):
            content = self.spoil(node, content)
        if isinstance(content, bytes):
            self._waiting[ticket] = Delivery(ticket, content)
        elif content is not None:
            self._waiting[ticket] = Delivery(ticket, problem=content)
        return ticket

    def collect(self, tickets: Collection[str]) -> list[Delivery]:
        return [self._waiting.pop(ticket) for ticket in tickets if ticket in self._waiting]

    def processes(self) -> list[int]:
        return []

    def close(self) -> None:
        return


def node_runtimes(job: Job, folder: Path, node_of_client: Sequence[str]) -> dict[str, NodeRuntime]:
    """A node per name, each with its clients and only their data."""
    works = {}
    for name in sorted(set(node_of_client)):
        clients = [client for client, node in enumerate(node_of_client) if node == name]
        write_share(folder / f"{name}.safetensors", job.federation, clients)
        share = read_share(folder / f"{name}.safetensors")

        def make_job(run: str, share: object = share, name: str = name) -> Job:
            settings = job.settings.model_copy(update={"validate_share": 0.0})
            return JobMaker(settings, share, None).make(folder / name)

        works[name] = NodeRuntime(make_job, clients, masker=partial(Masker, folder / f"keys-{name}", print))
    return works


def remote_engine(job: Job, folder: Path, nodes: int = 3, spoil: Spoil | None = None) -> NetworkEngine:
    """An engine over nodes in this process."""
    node_of_client = [f"node{client % nodes}" for client in range(len(job.federation))]
    transport = InProcessTransport(node_runtimes(job, folder, node_of_client), spoil)
    engine = NetworkEngine(job, transport, node_of_client, "run1", print)
    if job.settings.secure:
        engine.keys = masking_keys(engine.hello(len(node_of_client)))
    return engine
