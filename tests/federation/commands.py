"""The commands of a federation as real processes, for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedframe.util.files import read_tensors

PROGRAM = str(Path(sys.executable).with_name("fedframe"))
MEMBERS = ("north", "south", "west")
LONG = float(os.environ.get("FEDFRAME_TEST_SECONDS", "900"))  # a ceiling: processes start slowly on a busy machine


Process = subprocess.Popen[bytes]


class Commands:
    """Commands in a folder, each with a log; all are ended with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[Process] = []

    def start(self, log: str, *arguments: str, before: Sequence[str] = (), fault: str = "") -> Process:
        """Start a command of a federation; words may go before it, and `fault` names a file that nets may look for."""
        with (self.folder / log).open("ab") as file:
            process = subprocess.Popen(
                [*before, PROGRAM, "federation", *arguments],
                cwd=self.folder,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "FAULT": fault},
            )
        self.running.append(process)
        return process

    def join(self, name: str, fault: str = "") -> Process:
        """A node with its kit and data."""
        return self.start(
            f"{name}.log", "join", f"clinic/kits/{name}-kit.zip", "--data", f"npz:{name}.npz", fault=fault
        )

    def metrics(self) -> list[dict[str, Any]]:
        """The rounds of the first training so far."""
        return [json.loads(line) for line in self.text("clinic/runs/1/metrics.jsonl").splitlines()]

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
                process.wait(60)
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


def variates_add_up(folder: Path) -> None:
    """SCAFFOLD's c is the weighted mean of all c_k: it is so only if no node's private state is lost or out of step."""
    tensors, _ = read_tensors(folder / "clinic/runs/1/checkpoint.safetensors")
    notes = json.loads((folder / "clinic/runs/1/federation.json").read_text())
    sizes = torch.tensor([member["train"] for member in notes["members"]], dtype=torch.float64)
    total = torch.zeros_like(tensors["state/scaffold/c"], dtype=torch.float64)
    for client, name in enumerate(MEMBERS):
        seen = int(tensors["network/seen"][client])
        place = folder / f"{name}-node/runs/{notes['run']}/clients/000/{client:06d}"
        state, _ = read_tensors(place / f"{seen:06d}.safetensors")
        total += state["scaffold/c"].double() * sizes[client] / sizes.sum()
    assert torch.allclose(total, tensors["state/scaffold/c"].double(), atol=1e-5)
    assert float(total.abs().max()) > 1e-4
