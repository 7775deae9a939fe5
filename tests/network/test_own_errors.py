"""An error in a user's own part at nodes that the run itself has started ends the run, as it does without a network."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from fedframe.core.job import Job
from fedframe.engines.inline import InlineEngine
from fedframe.errors import ProtocolError, RunError
from fedframe.network.engine import NetworkEngine
from fedframe.network.local_nodes import ERROR, LocalNodes, answer, load_node_runtime, raise_error_of_nodes
from fedframe.network.node import NodeRuntime
from fedframe.network.transport import Delivery
from fedframe.runs.engine import OpenEngine
from fedframe.runs.session import execute
from tests.helpers import Recorder
from tests.network.in_process import InProcessTransport, clock, make  # noqa: F401

PART = """
from dataclasses import dataclass
from typing import ClassVar

import fedframe

@dataclass(frozen=True)
class Broken(fedframe.Part):
    name: ClassVar[str] = "broken"

    def penalty(self, context):
        raise {error}
"""


class NodeStub:
    """A runtime that raises what it is given."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def handle(self, payload: bytes) -> tuple[object, object, bytes]:
        raise self.error


class OwnNodes(InProcessTransport):
    """Nodes that are this run's own, without processes."""

    def __init__(self, local: LocalNodes) -> None:
        super().__init__({name: load_node_runtime(local.folder / name) for name in local.nodes})
        self.folder = local.folder

    def send(self, node: str, payload: bytes, round: int, timeout: float | None) -> str:
        self.sent.append((node, round))
        ticket = str(len(self.sent))
        try:
            delivery = Delivery(ticket, answer(self.known[node], self.folder / node, payload))
        except Exception:
            delivery = Delivery(ticket, problem="it raised something")
        self._waiting[ticket] = delivery
        return ticket

    def collect(self, tickets: Collection[str]) -> list[Delivery]:
        found = super().collect(tickets)
        if any(delivery.problem for delivery in found):
            raise_error_of_nodes(self.folder)
        return found


@pytest.mark.slow
@pytest.mark.parametrize("error", ["ValueError('boom')", "FileNotFoundError('no such table')"])
def test_error_of_ones_own_part_ends_the_run_with_the_same_sentence(tmp_path: Path, error: str) -> None:
    (tmp_path / "broken.py").write_text(PART.format(error=error))

    def open_nodes(job: Job, notify: Callable[[str], None]) -> NetworkEngine:
        local = LocalNodes.create(job)
        return local.open_engine(OwnNodes(local), notify)

    engines: dict[str, OpenEngine] = {"here": lambda job, notify: InlineEngine(job), "nodes": open_nodes}
    said = []
    for place, engine in engines.items():
        job, folder = make(f"{tmp_path / 'broken.py'}:Broken", tmp_path / place)
        with pytest.raises(RunError) as raised:
            execute(job, folder, Recorder(), engine)
        said.append(str(raised.value))
    assert "in penalty" in "".join(raised.value.__notes__)  # the node's own traceback
    assert "broken.py, line 12, in Broken.penalty" in said[0]
    first, second = (re.sub(r"client \d+", "client", text) for text in said)  # whoever came first
    assert first == second


@pytest.mark.parametrize("error", [ProtocolError("It came after a newer one."), RunError("The disk is full.")])
def test_what_may_be_better_the_next_time_is_left_to_the_next_request(tmp_path: Path, error: Exception) -> None:
    error.__cause__ = OSError(28, "No space left on device") if isinstance(error, RunError) else None
    stub: Callable[..., NodeRuntime] = NodeStub  # type: ignore[assignment]
    (tmp_path / "node-1").mkdir()
    with pytest.raises(type(error)):
        answer(stub(error), tmp_path / "node-1", b"")
    assert not (tmp_path / "node-1" / ERROR).exists()
    raise_error_of_nodes(tmp_path)
