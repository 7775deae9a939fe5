"""Flower's simulation on Ray: the same bits as one process, for all methods over one simulation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")

import psutil

from fedframe.network.flower.environment import require_packages
from fedframe.network.flower.simulation import SimulationTransport
from fedframe.network.local_nodes import assign_nodes, write_node_folders
from fedframe.runs.session import execute
from fedframe.util.files import read_json, write_json
from tests.helpers import Recorder, comparable_scores, same_file
from tests.network.deployment import StayingEngine, make
from tests.network.test_local_deployment import METHODS

pytestmark = pytest.mark.slow

Simulation = tuple[SimulationTransport, list[str], Path]


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulation]:
    """Ray takes long to start, so all tests share one simulation; its nodes know every run beforehand."""
    require_packages("flwr", "ray", extra="flower-sim")  # as a run does it: it sets the environment of Ray
    folder = tmp_path_factory.mktemp("simulation")
    runs = {method: make(method, folder / method) for method in METHODS}
    job = runs["fedavg"][0]
    node_of_client = assign_nodes(job, 3)
    known = {
        method: {"settings": job.settings.model_dump(mode="json"), "folder": str(job.folder)}
        for method, (job, _) in runs.items()
    }
    for name in write_node_folders(job, folder / "network", node_of_client):
        path = folder / "network" / name / "node.json"
        write_json(path, {**read_json(path), "runs": known})
    transport = SimulationTransport(folder / "network", 3)
    yield transport, node_of_client, folder
    transport.close()


@pytest.mark.parametrize("method", METHODS)
def test_a_simulation_gives_the_same_bits(simulation: Simulation, tmp_path: Path, method: str) -> None:
    transport, node_of_client, _ = simulation
    job, there = make(method, tmp_path / "there")
    execute(job, there, Recorder(), lambda job, note: StayingEngine(job, transport, node_of_client, method, note))
    job, here = make(method, tmp_path / "here")
    execute(job, here, Recorder())
    assert same_file(here.path / "model.safetensors", there.path / "model.safetensors")
    assert comparable_scores(here.path) == comparable_scores(there.path)
    assert all(line["dropped"] == 0 for line in there.metrics())


def test_nodes_have_the_priority_of_the_run(simulation: Simulation) -> None:
    """Ray would give them a niceness of 15, so that anything else on the machine starves them."""
    processes = psutil.Process().children(recursive=True)
    nodes = [process.nice() for process in processes if any("ClientApp" in word for word in process.cmdline())]
    assert nodes
    assert {*nodes} == {psutil.Process().nice()}
