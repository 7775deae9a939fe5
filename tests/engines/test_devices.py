"""Devices, with GPUs that are made up: who computes where, and that the server's process never touches one."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fedframe
from fedframe.core.client_runtime import ClientRuntime
from fedframe.core.job import Job
from fedframe.engines import local, placement
from fedframe.engines.placement import place_data
from fedframe.engines.worker_pool import WorkerEngine
from fedframe.errors import SettingError
from fedframe.experiments.grid import run as grid
from fedframe.jobs import devices
from fedframe.jobs.devices import check_device, count_devices, resolve_device
from fedframe.util.files import read_tensors
from tests.helpers import Recorder, blobs, images, make_job, nothing


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two GPUs, of which using one in this process is an error."""
    monkeypatch.setattr(devices, "count_devices", lambda kind: {"cpu": 1, "cuda": 2}.get(kind, 0))
    parent = os.getpid()

    def refuse(*_: object) -> None:
        assert os.getpid() != parent, "the server's process has touched CUDA"

    monkeypatch.setattr(torch.cuda, "_lazy_init", refuse)


# -- what is asked for -------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("tpu", "device = 'tpu' is not available on this machine; use cpu"),
        ("mps", "device = 'mps' is not available on this machine; use cpu"),
        ("cuda:2", "device = 'cuda:2' is not available on this machine; use cuda, or a number from cuda:0 to cuda:1"),
        ("cuda:0,cuda:x", "device = 'cuda:0,cuda:x': cuda:x is not available on this machine"),
        ("cpu:1", "device = 'cpu:1' is not available on this machine; use cpu"),
        ("cuda:0,cpu", "mixes kinds of devices; use one kind, as in cuda:0,cuda:1"),
        ("cuda,cuda", "give every device its number, as in cuda:0,cuda:1"),
        ("cuda:1,cuda:1", "names a device twice; use workers"),
    ],
)
def test_devices_that_are_not_here_are_refused_in_one_sentence(device: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        check_device(device, several=True)


@pytest.mark.usefixtures("two_gpus")
def test_good_devices_pass_and_a_node_takes_one() -> None:
    for device in ("cpu", "cuda", "cuda:1", "cuda:0,cuda:1", "cuda:1, cuda:0"):
        check_device(device, several=True)
    with pytest.raises(SettingError, match="names 2 devices where one is used; use cuda:0"):
        check_device("cuda:0,cuda:1")


@pytest.mark.parametrize(
    ("here", "device"),
    [({"cuda": 2, "mps": 0}, "cuda:0,cuda:1"), ({"cuda": 0, "mps": 1}, "mps"), ({"cuda": 0, "mps": 0}, "cpu")],
)
def test_auto_is_what_is_here(here: dict[str, int], device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "count_devices", here.__getitem__)
    assert resolve_device("auto") == device
    assert resolve_device("cuda:5") == "cuda:5"


def test_a_run_keeps_what_auto_was(tmp_path: Path) -> None:
    if not torch.cuda.is_available() and not torch.backends.mps.is_available():
        assert make_job(tmp_path, device="auto").settings.device == "cpu"


def test_gpus_are_counted_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = os.getpid()
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0 if os.getpid() == parent else 3)
    assert count_devices("cuda") == 3
    monkeypatch.setattr(torch.cuda, "device_count", lambda: os._exit(1))
    assert count_devices("cuda") == 0


# -- who computes where ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("device", "workers", "forks", "count"),
    [
        ("cpu", 3, True, 3),
        ("cpu", 3, False, 1),
        ("cuda", None, True, 1),
        ("cuda:0,cuda:1", None, True, 2),
        ("cuda:0,cuda:1", 5, True, 5),
        ("cuda:0,cuda:1", 5, False, 1),
        ("mps", 4, True, 1),
    ],
)
def test_processes_of_a_run(
    device: str, workers: int | None, forks: bool, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "can_fork", lambda: forks)
    settings = make_job(tmp_path).settings.model_copy(update={"device": device, "workers": workers})
    job: Any = SimpleNamespace(settings=settings)
    assert local.worker_count(job) == count


def test_where_cuda_is_in_use_already_clients_train_here_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(local, "InlineEngine", lambda job: SimpleNamespace(device=job.device))
    notes: list[str] = []
    settings = make_job(tmp_path).settings
    for device in ("cuda:1,cuda:0", "cuda:1", "cpu"):
        job: Any = SimpleNamespace(settings=settings.model_copy(update={"device": device, "workers": 2}))
        job.device = device.partition(",")[0]
        engine: Any = local.local_engine(job, notes.append)
        assert engine.device == job.device
    assert len(notes) == 2
    assert "CUDA is in use in this process already" in notes[0]


@pytest.mark.slow
@pytest.mark.usefixtures("two_gpus")
def test_process_i_computes_on_device_i_mod_n_and_the_server_on_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers' devices are noted in files, and then the processor is used in their place."""
    seen = tmp_path / "seen"
    seen.mkdir()

    class Noting(ClientRuntime):
        def __init__(self, job: Job) -> None:
            (seen / f"{os.getpid()}").write_text(job.device)
            super().__init__(job.on("cpu"))

    monkeypatch.setattr("fedframe.engines.worker.ClientRuntime", Noting)
    monkeypatch.setattr("fedframe.engines.worker.place_data", lambda job, sharing: job)
    given: dict[str, Any] = {"data": blobs(clients=8), "model": "mlp:8", "partition": "user", "rounds": 2}
    fedframe.run("fedavg", device="cuda:0,cuda:1", workers=3, out=tmp_path / "gpus", progress=Recorder(), **given)
    fedframe.run("fedavg", workers=1, out=tmp_path / "cpu", progress=False, **given)
    assert {file.read_text() for file in seen.iterdir()} == {"cuda:0", "cuda:1"}
    first, second = (read_tensors(tmp_path / name / "model.safetensors")[0] for name in ("gpus", "cpu"))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())

    job = make_job(tmp_path / "job", device="cuda:0,cuda:1")
    engine = WorkerEngine(job, 3, nothing)
    try:
        assert [worker.device for worker in engine.workers] == ["cuda:0", "cuda:1", "cuda:0"]
        assert engine.sharing == 2  # processes on one device
        assert engine.server_job(job).device == "cpu"
    finally:
        engine.close()


# -- data on the device ------------------------------------------------------------------------------------------------
def test_data_are_put_on_the_device_where_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device `cpu:0` is the processor by another name."""
    job = make_job(tmp_path)
    size = job.federation.source.train.x.take(torch.arange(96)).nbytes
    there = job.on("cpu:0")
    for free, processes, placed in ((4 * size, 1, True), (4 * size, 2, False), (0, 1, False)):
        monkeypatch.setattr(placement, "free_on", lambda _, free=free: free)
        assert (place_data(there, processes) is not there) == placed
    assert place_data(job) is job
    monkeypatch.setattr(placement, "free_on", lambda _: 1 << 40)
    moved, rows = place_data(there).federation.source, torch.tensor([1, 2])
    assert torch.equal(moved.batch(moved.train, rows), job.federation.source.batch(job.federation.source.train, rows))
    drawn = make_job(tmp_path, images(16), model="convnet", partition="iid", clients=2, augment="flip").on("cpu:0")
    assert place_data(drawn) is drawn


# -- grids -------------------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("two_gpus")
def test_cells_of_a_grid_are_spread_over_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = grid.make_runner({"cuda:0,cuda:1"}, cores=8, keep_state=False)
    assert isinstance(runner, grid.ParallelRunner)
    assert runner.cores == 2
    monkeypatch.setattr(grid, "work_on", lambda cell, workers, pipe, keep, device: (tmp_path / device).touch())
    cell: Any = SimpleNamespace(settings=make_job(tmp_path).settings.model_copy(update={"workers": 3}))
    for _ in range(2):
        runner.running.append(runner.start(cell, 1))
    for running in runner.running:
        running.process.join()
    assert [running.device for running in runner.running] == ["cuda:0", "cuda:1"]
    assert (tmp_path / "cuda:0").exists()
    assert (tmp_path / "cuda:1").exists()


@pytest.mark.usefixtures("two_gpus")
def test_cells_run_one_by_one_where_they_cannot_be_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(grid.make_runner({"cpu"}, 2, False), grid.ParallelRunner)
    assert isinstance(grid.make_runner({"cpu", "cuda"}, 2, False), grid.SequentialRunner)
    assert isinstance(grid.make_runner({"mps"}, 2, False), grid.SequentialRunner)
    monkeypatch.setattr(grid, "can_fork", lambda: False)
    assert isinstance(grid.make_runner({"cuda"}, 2, False), grid.SequentialRunner)
    monkeypatch.setattr(grid, "can_fork", lambda: True)
    with pytest.raises(SettingError, match="device = 'cuda:7' is not available on this machine"):
        grid.make_runner({"cuda:7"}, 2, False)
