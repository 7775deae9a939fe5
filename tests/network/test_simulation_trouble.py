"""What becomes of a simulation whose processes are gone."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")

from flwr.app import Error, RecordDict
from flwr.serverapp import ServerApp

from fedframe.errors import RunError
from fedframe.network.flower import simulation
from fedframe.network.flower.simulation import MOST_LOST, SimulationTransport
from fedframe.network.flower.transport import FlowerTransport

RAY_ENDED_IT, NODE_RAISED = Error(0, "<class 'ray.exceptions.ActorDiedError'>"), Error(2, "ValueError")


class Grid:
    """Answers every request in the same way."""

    def __init__(self, *answers: Error | None) -> None:
        self.answers = answers

    def pull_messages(self, tickets: Sequence[str]) -> list[SimpleNamespace]:
        """One reply per answer."""
        about = SimpleNamespace(reply_to_message_id=tickets[0])
        return [
            SimpleNamespace(metadata=about, content=RecordDict(), error=error, has_error=lambda e=error: e is not None)
            for error in self.answers
        ]


def open_transport(folder: Path, grid: Grid) -> SimulationTransport:
    """A transport of two nodes that has started without Ray."""
    transport = SimulationTransport.__new__(SimulationTransport)
    FlowerTransport.__init__(transport, grid)
    transport.folder, transport._thread, transport._lost = folder, threading.current_thread(), 0
    transport._names = {1: "node-1", 2: "node-2"}
    return transport


def test_a_run_ends_when_no_process_is_left_to_answer(tmp_path: Path) -> None:
    transport = open_transport(tmp_path, Grid(RAY_ENDED_IT))
    for _ in range(MOST_LOST * 2):
        assert transport.collect({"ticket": 0})[0].problem
    with pytest.raises(RunError, match=r"lost the processes of its nodes .*ActorDiedError.* memory"):
        transport.collect({"ticket": 0})


@pytest.mark.parametrize("other", [None, NODE_RAISED])
def test_a_run_goes_on_while_some_process_answers(tmp_path: Path, other: Error | None) -> None:
    transport = open_transport(tmp_path, Grid(RAY_ENDED_IT, other))
    for _ in range(10 * MOST_LOST):
        assert len(transport.collect({"ticket": 0})) == 2


def test_a_simulation_that_cannot_start_leaves_no_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: SimulationTransport, nodes: int) -> None:
        raise RunError("A simulated node could not start: no memory.")

    ended = threading.Event()
    monkeypatch.setattr(SimulationTransport, "_identify_nodes", fails)
    monkeypatch.setattr(SimulationTransport, "_receive_grid", lambda self: Grid())

    def run_simulation(server: Any, app: object, nodes: int, backend_config: object) -> None:
        server(None, None)
        ended.set()

    monkeypatch.setattr(simulation, "run_simulation", run_simulation)
    monkeypatch.setattr(ServerApp, "__call__", lambda self, grid, context: self._main(grid, context))
    with pytest.raises(RunError, match="could not start"):
        SimulationTransport(tmp_path, 2)
    assert ended.wait(60)
