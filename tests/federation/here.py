"""A post without a network: nodes in this process, each with nothing but its own share of the data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

from fedframe.core.job import Job
from fedframe.errors import FedframeError
from fedframe.jobs.build import JobMaker
from fedframe.network.engine import NetworkEngine, keys_of
from fedframe.network.masks import Masker
from fedframe.network.node import NodeRuntime
from fedframe.network.node_data import read_share, write_share
from fedframe.network.transport import Delivery

Spoil = Callable[[str, bytes], bytes | str | None]  # of a node's answer: another one, a problem, or nothing at all


class HerePost:
    """Letters to nodes in this process; `spoil` may do to an answer what a network or a stranger would."""

    def __init__(self, nodes: Mapping[str, NodeRuntime], spoil: Spoil | None = None) -> None:
        self.known, self.spoil = dict(nodes), spoil
        self.away: set[str] = set()
        self.notes: list[str] = []
        self.letters: list[tuple[str, int]] = []
        self._waiting: dict[str, Delivery] = {}

    def nodes(self) -> Collection[str]:
        return self.known.keys() - self.away

    def send(self, node: str, letter: bytes, round: int, seconds: float | None) -> str:
        ticket = str(len(self.letters))
        self.letters.append((node, round))
        content: bytes | str | None
        try:
            content = self.known[node].answer(letter)[2]
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


def node_works(job: Job, folder: Path, seats: Sequence[str]) -> dict[str, NodeRuntime]:
    """A node per name, each with the clients that sit there and only their data."""
    works = {}
    for name in sorted(set(seats)):
        clients = [client for client, seat in enumerate(seats) if seat == name]
        write_share(folder / f"{name}.safetensors", job.federation, clients)
        share = read_share(folder / f"{name}.safetensors")

        def make_job(run: str, share: object = share, name: str = name) -> Job:
            settings = job.settings.model_copy(update={"validate_share": 0.0})
            return JobMaker(settings, share, None).make(folder / name)

        works[name] = NodeRuntime(make_job, clients, masker=partial(Masker, folder / f"keys-{name}", print))
    return works


def remote_engine(job: Job, folder: Path, nodes: int = 3, spoil: Spoil | None = None) -> NetworkEngine:
    """An engine over nodes in this process."""
    seats = [f"node{client % nodes}" for client in range(len(job.federation))]
    post = HerePost(node_works(job, folder, seats), spoil)
    engine = NetworkEngine(job, post, seats, "run1", print)
    if job.settings.secure:
        engine.keys = keys_of(engine.hello(len(seats)))
    return engine
