"""A federation of commands on this machine, for benchmarks: `federation new`, `serve`, `join` for every node, `start`.

Every command is a process of its own with a log, as it would be on machines of their own; the organiser and nodes talk
over TLS on loopback. Whatever was started is ended with the `with` block.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import psutil

from fedframe.util.processes import free_ports

PROGRAM = str(Path(sys.executable).with_name("fedframe"))
START_SECONDS = 600.0
PARTS = {
    "flower.superlink ": "the SuperLink",
    "flower.supernode ": "the SuperNode",
}  # modules that commands start, as people know them


class Federation:
    """The commands of a federation in a folder; nodes have a few random samples each."""

    def __init__(
        self, folder: Path, nodes: Sequence[str], settings: Sequence[str], features: int = 6, samples: int = 60
    ) -> None:
        self.folder, self.nodes = folder, tuple(nodes)
        self.commands: dict[str, subprocess.Popen[bytes]] = {}
        self.port = free_ports(1)[0]
        write_data(folder, ["public", *nodes], features, samples)
        made = subprocess.run(
            [
                PROGRAM, "federation", "new", "clinic", "--nodes", ",".join(nodes), "--host", "127.0.0.1",
                "--port", str(self.port), "--like", "npz:public.npz", *settings,
            ],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if made.returncode:
            sys.exit(made.stdout + made.stderr)

    def __enter__(self) -> Federation:
        self.run("serve", "serve", "clinic", "--bind", "127.0.0.1")
        deadline = time.monotonic() + START_SECONDS
        while "listens" not in self.log("serve"):
            if time.monotonic() > deadline:
                sys.exit(f"the SuperLink does not listen after {START_SECONDS:g} s:\n{self.log('serve')}")
            self.check_alive()
            time.sleep(0.2)
        return self

    def join(self, node: str, kit: str | None = None) -> None:
        """Have a node join with its data."""
        self.run(node, "join", kit or f"clinic/kits/{node}-kit.zip", "--data", f"npz:{node}.npz")

    def run(self, name: str, *arguments: str) -> None:
        """Start a command, under a name."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.commands[name] = subprocess.Popen(
                [PROGRAM, "federation", *arguments],
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def metrics(self) -> list[dict[str, Any]]:
        """The rounds of the training so far."""
        path = self.folder / "clinic/runs/1/metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_rounds(self, rounds: int, seconds: float) -> None:
        """Wait until so many rounds are done."""
        deadline = time.monotonic() + seconds
        while len(self.metrics()) < rounds:
            if time.monotonic() > deadline:
                sys.exit(f"{len(self.metrics())} rounds of {rounds} after {seconds:g} s:\n{self.log('start')}")
            self.check_alive()
            time.sleep(0.2)

    def wait_for_end(self, seconds: float) -> None:
        """Wait until the training has ended."""
        deadline = time.monotonic() + seconds
        while self.commands["start"].poll() is None:
            if time.monotonic() > deadline:
                sys.exit(f"the training has not ended after {seconds:g} s:\n{self.log('start')}")
            self.check_alive()
            time.sleep(0.2)
        self.check_alive()

    def check_alive(self) -> None:
        """End the benchmark if a command has ended with an error."""
        for name, command in self.commands.items():
            if command.poll():
                sys.exit(f"{name} has ended:\n{self.log(name)}")

    def log(self, name: str) -> str:
        """The end of a command's log."""
        return self.whole_log(name)[-3000:]

    def whole_log(self, name: str) -> str:
        """A command's log."""
        return (self.folder / f"{name}.log").read_text()

    def processes(self) -> dict[str, psutil.Process]:
        """All processes: each command, and what it has started."""
        found = {}
        for name, command in self.commands.items():
            with contextlib.suppress(psutil.NoSuchProcess):
                parent = psutil.Process(command.pid)
                found[name] = parent
                for child in parent.children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        words = " ".join(child.cmdline())
                        part = next((said for module, said in PARTS.items() if module in words), f"child {child.pid}")
                        found[f"{name}: {part}"] = child
        return found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for command in reversed(self.commands.values()):
            if command.poll() is None:
                command.terminate()
        for command in self.commands.values():
            try:
                command.wait(60)
            except subprocess.TimeoutExpired:
                command.kill()


def write_data(folder: Path, names: Sequence[str], features: int, samples: int) -> None:
    """Three classes that can be told apart, in a file for each name."""
    draw = np.random.default_rng(0)
    centres = draw.normal(0, 2, (3, features))
    for name in names:
        y = draw.integers(0, 3, samples)
        np.savez(
            folder / f"{name}.npz", x=(centres[y] + draw.normal(0, 1, (samples, features))).astype(np.float32), y=y
        )


def machine() -> dict[str, Any]:
    """What this machine is, for a result."""
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "load": os.getloadavg()[0],
    }
