"""Slow faults, run by hand (pytest -m slow): a network that is cut for 90 seconds, a node that cannot write."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import resource
import selectors
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedframe.federation.kit import Kit
from fedframe.federation.processes import free_ports
from tests.federation.test_killed import MEMBERS, PROGRAM, Commands, commands, until, write_data

__all__ = ["commands"]
pytestmark = pytest.mark.slow
CUT = 90.0


class Proxy:
    """Passes bytes on between two ports of this machine, until it is cut: then it passes nothing, and says nothing."""

    def __init__(self, port: int, target: int) -> None:
        self.target, self.cut, self.over = target, threading.Event(), threading.Event()
        self.server = socket.create_server(("127.0.0.1", port))
        self.server.settimeout(0.2)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self.over.is_set():
            with contextlib.suppress(TimeoutError):
                near, _ = self.server.accept()
                threading.Thread(target=self._pass, args=(near,), daemon=True).start()

    def _pass(self, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.target)) as far:
            watch = selectors.DefaultSelector()
            watch.register(near, selectors.EVENT_READ, far)
            watch.register(far, selectors.EVENT_READ, near)
            while not self.over.is_set():
                if self.cut.is_set():
                    time.sleep(0.1)
                    continue
                for key, _ in watch.select(0.2):
                    assert isinstance(key.fileobj, socket.socket)
                    content = key.fileobj.recv(1 << 16)
                    if not content:
                        return
                    key.data.sendall(content)


def metrics(folder: Path) -> list[dict[str, float]]:
    path = folder / "clinic/runs/1/metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def set_up(commands: Commands, rounds: int, port: int) -> None:
    write_data(commands.folder)
    commands.run(
        "federation", "new", "clinic", "--nodes", ",".join(MEMBERS), "--host", "127.0.0.1", "--port", str(port),
        "--like", "npz:public.npz", "--method", "scaffold", "--rounds", str(rounds), "--model", "mlp:8",
    )  # fmt: skip
    commands.start("serve.log", "serve", "clinic", "--bind", "127.0.0.1")


def test_a_cut_of_90_seconds_costs_a_node_some_rounds_and_no_more(commands: Commands) -> None:
    folder, (port, dialled) = commands.folder, free_ports(2)
    set_up(commands, 60, port)
    proxy = Proxy(dialled, port)
    kit = Kit.read(folder / "clinic/kits/west-kit.zip")
    dataclasses.replace(kit, agreement=dataclasses.replace(kit.agreement, port=dialled)).write(folder / "west.zip")
    for name in ("north", "south"):
        commands.start(f"{name}.log", "join", f"clinic/kits/{name}-kit.zip", "--data", f"npz:{name}.npz")
    commands.start("west.log", "join", "west.zip", "--data", "npz:west.npz")
    until("the SuperLink listens", lambda: "listens" in commands.text("serve.log"))
    training = commands.start("start.log", "start", "clinic")
    until("three rounds", lambda: len(metrics(folder)) >= 3)
    proxy.cut.set()
    time.sleep(CUT)
    proxy.cut.clear()
    back = len(metrics(folder))
    until("west is back", lambda: any(not line["dropped"] for line in metrics(folder)[back + 1 :]))
    assert any(line["dropped"] == 1 for line in metrics(folder))
    assert training.wait(600) == 0, commands.text("start.log")
    assert [line["round"] for line in metrics(folder)] == list(range(1, 61))
    assert not metrics(folder)[-1]["dropped"]
    until("west has its models", lambda: "The run is over" in commands.text("west.log"))
    proxy.over.set()


def test_a_node_that_cannot_write_says_so_and_the_others_go_on(commands: Commands) -> None:
    folder, (port,) = commands.folder, free_ports(1)
    set_up(commands, 6, port)
    for name in ("north", "south"):
        commands.start(f"{name}.log", "join", f"clinic/kits/{name}-kit.zip", "--data", f"npz:{name}.npz")
    limited = subprocess.Popen(
        [PROGRAM, "federation", "join", "clinic/kits/west-kit.zip", "--data", "npz:west.npz"],
        cwd=folder,
        stdout=(folder / "west.log").open("ab"),
        stderr=subprocess.STDOUT,
    )
    commands.running.append(limited)
    until("the SuperLink listens", lambda: "listens" in commands.text("serve.log"))
    training = commands.start("start.log", "start", "clinic")
    until("two rounds", lambda: len(metrics(folder)) >= 2)
    # From here on no file of this process may grow beyond 100 bytes, which is what a full disk does to it.
    hard = resource.prlimit(limited.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(limited.pid, resource.RLIMIT_FSIZE, (100, hard))
    until("a round without west", lambda: any(line["dropped"] for line in metrics(folder)))
    resource.prlimit(limited.pid, resource.RLIMIT_FSIZE, (hard, hard))
    assert training.wait(600) == 0, commands.text("start.log")
    assert "no reply of client west: it could not read or write a file (File too large)" in commands.text("start.log")
    assert str(folder) not in commands.text("start.log")  # no path of a node is told
    assert limited.poll() is None
