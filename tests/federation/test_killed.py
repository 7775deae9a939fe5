"""A federation by its commands, with processes killed by id: the run ends, and no finished round is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedframe.core.files import read_json, read_tensors
from fedframe.federation.processes import free_ports

PROGRAM = str(Path(sys.executable).with_name("fedframe"))
MEMBERS = ("north", "south", "west")
ROUNDS = 12
LONG = 240.0  # seconds: processes start slowly on a busy machine


class Commands:
    """Commands in a folder, each with a log; all are ended with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, log: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("ab") as file:
            process = subprocess.Popen(
                [PROGRAM, "federation", *arguments], cwd=self.folder, stdout=file, stderr=subprocess.STDOUT
            )
        self.running.append(process)
        return process

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [PROGRAM, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=LONG, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def text(self, log: str) -> str:
        path = self.folder / log
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.terminate()
        for process in self.running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    made = Commands(tmp_path)
    yield made
    made.close()


def until(what: str, condition: Callable[[], bool], seconds: float = LONG) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(0.2)


def write_data(folder: Path) -> None:
    draw = np.random.default_rng(0)
    centres = draw.normal(0, 2, (3, 6))
    for name in ("public", *MEMBERS):
        y = draw.integers(0, 3, 60)
        np.savez(folder / f"{name}.npz", x=(centres[y] + draw.normal(0, 1, (60, 6))).astype(np.float32), y=y)


def test_a_federation_survives_kill_9_of_a_node_of_the_training_and_of_the_superlink(commands: Commands) -> None:
    folder = commands.folder
    write_data(folder)
    (port,) = free_ports(1)
    commands.run(
        "federation", "new", "clinic", "--nodes", ",".join(MEMBERS), "--host", "127.0.0.1", "--port", str(port),
        "--like", "npz:public.npz", "--method", "scaffold", "--rounds", str(ROUNDS), "--model", "mlp:8",
    )  # fmt: skip
    serving = commands.start("serve.log", "serve", "clinic", "--bind", "127.0.0.1")

    def join(name: str) -> subprocess.Popen[bytes]:
        return commands.start(f"{name}.log", "join", f"clinic/kits/{name}-kit.zip", "--data", f"npz:{name}.npz")

    def train() -> subprocess.Popen[bytes]:
        return commands.start("start.log", "start", "clinic", "--test-data", "npz:public.npz")

    def rounds() -> list[int]:
        return [json.loads(line)["round"] for line in commands.text("clinic/runs/1/metrics.jsonl").splitlines()]

    nodes = {name: join(name) for name in MEMBERS}
    until("the SuperLink listens", lambda: "listens" in commands.text("serve.log"))
    training = train()

    until("two rounds", lambda: len(rounds()) >= 2)
    os.kill(nodes["north"].pid, signal.SIGKILL)
    nodes["north"].wait()
    nodes["north"] = join("north")

    until("four rounds", lambda: len(rounds()) >= 4)
    os.kill(training.pid, signal.SIGKILL)
    training.wait()
    finished = rounds()
    training = train()
    until("the next round", lambda: len(rounds()) > len(finished))
    assert f"Going on after round {len(finished)}" in commands.text("start.log") or len(finished) == ROUNDS

    until("eight rounds", lambda: len(rounds()) >= 8)
    children = Path(f"/proc/{serving.pid}/task/{serving.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    until("the SuperLink is back", lambda: commands.text("serve.log").count("listens") == 2)
    # Back soon enough, the training goes on as if nothing had happened; else it ends and says how to go on.
    if training.wait(LONG) != 0:
        assert "go on with: fedframe federation start clinic" in commands.text("start.log")
        training = train()
        assert training.wait(LONG) == 0, commands.text("start.log")

    assert rounds() == list(range(1, ROUNDS + 1))
    summary = read_json(folder / "clinic" / "runs" / "1" / "summary.json")
    assert summary["scores"]["generic"]["final"] > 0.8
    assert summary["scores"]["personal"]["clients"] == 3
    until("north has its models", lambda: "The run is over" in commands.text("north.log"))
    (run,) = (folder / "north-node" / "runs").iterdir()
    own, shared = (
        read_tensors(run / "model.safetensors")[0],
        read_tensors(folder / "clinic/runs/1/model.safetensors")[0],
    )
    assert all(bool((own[name] == tensor).all()) for name, tensor in shared.items())
    assert any((run / "clients").rglob("*.safetensors"))
    assert len(commands.run("predict", str(run), "public.npz", "--client", "north").splitlines()) == 60
    assert "finished" in commands.run("federation", "status", "clinic")
