"""A slow fault, run by hand (pytest -m slow): a network that is cut for 90 seconds."""

from __future__ import annotations

import contextlib
import dataclasses
import selectors
import socket
import threading
import time

import pytest

pytest.importorskip("flwr")

from fedframe.federation.kit import Kit
from fedframe.federation.processes import free_ports
from tests.federation.commands import MEMBERS, Commands, commands, until, variates_add_up, write_data

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
        commands.join(name)
    commands.start("west.log", "join", "west.zip", "--data", "npz:west.npz")
    until("the SuperLink listens", lambda: "listens" in commands.text("serve.log"))
    training = commands.start("start.log", "start", "clinic")
    until("three rounds", lambda: len(commands.metrics()) >= 3)
    proxy.cut.set()
    time.sleep(CUT)
    proxy.cut.clear()
    back = len(commands.metrics())
    until("west is back", lambda: any(not line["dropped"] for line in commands.metrics()[back + 1 :]))
    assert any(line["dropped"] == 1 for line in commands.metrics())
    assert training.wait(600) == 0, commands.text("start.log")
    assert [line["round"] for line in commands.metrics()] == list(range(1, 61))
    assert not commands.metrics()[-1]["dropped"]
    until("west has its models", lambda: "The run is over" in commands.text("west.log"))
    variates_add_up(folder)
    proxy.over.set()
