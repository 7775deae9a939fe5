"""A simulation on a Ray cluster that somebody else has started: the same bits, and a clear word if it is not there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")

from fedframe.errors import SettingError
from fedframe.network.flower.simulation import check_cluster
from fedframe.util.processes import free_ports
from tests.federation.commands import LONG, PROGRAM, until
from tests.helpers import same_file

RAY = str(Path(sys.executable).with_name("ray"))
TASK = ("run", "scaffold", "--clients", "4", "--rounds", "2", "--data-share", "0.2", "--model", "mlp:16")


def run(folder: Path, *options: str, **variables: str) -> str:
    done = subprocess.run(
        [PROGRAM, *TASK, *options], cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True,
        timeout=LONG, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_simulation_on_a_cluster_gives_the_same_bits(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    home = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # Ray's sockets want short names
    options = ["--num-cpus", "1", "--include-dashboard", "false", "--disable-usage-stats", "--temp-dir", home]
    with (tmp_path / "ray.log").open("wb") as log:
        head = subprocess.Popen(
            [RAY, "start", "--head", "--block", "--node-ip-address", "127.0.0.1", "--port", str(port), *options],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        until("Ray is there", lambda: b"Ray runtime started" in (tmp_path / "ray.log").read_bytes())
        nodes = ("--engine", "flower-sim", "--nodes", "2", "--out", "there")
        run(tmp_path, *nodes, RAY_ADDRESS=f"127.0.0.1:{port}")
        worked = list(Path(home).glob("session_*/logs/worker-*.out"))
    finally:
        head.terminate()
        head.wait(LONG)
        shutil.rmtree(home, ignore_errors=True)
    assert worked  # by the cluster's own workers
    run(tmp_path, "--out", "here")
    assert same_file(tmp_path / "here/model.safetensors", tmp_path / "there/model.safetensors")


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_a_cluster_that_is_not_there_is_said_at_once(form: str) -> None:
    address = form.format(*free_ports(1))
    with pytest.raises(SettingError, match=f"RAY_ADDRESS = '{address}': nothing listens there; start a cluster"):
        check_cluster(address)


@pytest.mark.parametrize("address", ["", "auto", "local"])
def test_ray_finds_other_clusters_itself(address: str) -> None:
    check_cluster(address)
