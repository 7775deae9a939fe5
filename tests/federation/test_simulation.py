"""Flower's simulation on Ray: the same bits as one process, for all methods over one simulation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")

from fedframe.network.flower.simulation import SimulationPost
from fedframe.network.local_nodes import deal, write_nodes
from fedframe.runs.session import execute
from fedframe.util.files import read_json, write_json
from tests.federation.network import StayingEngine, make
from tests.federation.test_network import METHODS
from tests.helpers import Recorder, same_file

Simulation = tuple[SimulationPost, list[str], Path]


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulation]:
    """Ray takes long to start, so all tests share one simulation; its nodes know every run beforehand."""
    folder = tmp_path_factory.mktemp("simulation")
    runs = {method: make(method, folder / method) for method in METHODS}
    job = runs["fedavg"][0]
    seats = deal(job, 3)
    told = {
        method: {"settings": job.settings.model_dump(mode="json"), "folder": str(job.folder)}
        for method, (job, _) in runs.items()
    }
    for name in write_nodes(job, folder / "network", seats):
        path = folder / "network" / name / "node.json"
        write_json(path, {**read_json(path), "runs": told})
    post = SimulationPost(folder / "network", 3)
    yield post, seats, folder
    post.close()


@pytest.mark.parametrize("method", METHODS)
def test_a_simulation_gives_the_same_bits(simulation: Simulation, tmp_path: Path, method: str) -> None:
    post, seats, _ = simulation
    job, there = make(method, tmp_path / "there")
    execute(job, there, Recorder(), lambda job, note: StayingEngine(job, post, seats, method, note))
    job, here = make(method, tmp_path / "here")
    execute(job, here, Recorder())
    assert same_file(here.path / "model.safetensors", there.path / "model.safetensors")
    first, second = (read_json(run.path / "summary.json") for run in (here, there))
    assert first["scores"] == second["scores"]
    assert all(line["dropped"] == 0 for line in there.metrics())
