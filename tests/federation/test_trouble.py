"""Nodes in trouble, as real processes: slow, raising, out of disk, cut off. The run goes on and nothing is lost.

One federation goes through all of it, test by test in the order of this file; each leaves it whole.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedframe.federation.kit import Kit
from fedframe.util.processes import free_ports
from tests.federation.commands import LONG, MEMBERS, Commands, Process, until, variates_add_up, write_data
from tests.federation.proxy import Proxy

pytestmark = pytest.mark.slow
PATIENCE = "15"
CUT = 90.0
NET = """
import os
from pathlib import Path

from torch import nn


class Net(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.layer = nn.Linear(shape[0], 8)

    def forward(self, x):
        if Path(os.environ.get("FAULT") or "no such file").exists():
            raise RuntimeError("patient 7")
        return self.layer(x).relu()
"""


def can_mount() -> bool:
    """Whether a small disk of one's own can be made here."""
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run(["unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True)
    return tried.returncode == 0


SMALL_DISK = can_mount()


class Clinic:
    """A training that goes on and on: south may raise, west has a small disk, and north's line can be cut."""

    def __init__(self, folder: Path) -> None:
        self.commands, self.folder = Commands(folder), folder
        write_data(folder)
        (folder / "net.py").write_text(NET)
        port, dialled = free_ports(2)
        self.commands.run(
            "federation", "new", "clinic", "--nodes", ",".join(MEMBERS), "--host", "127.0.0.1", "--port", str(port),
            "--like", "npz:public.npz", "--method", "scaffold", "--rounds", "1000", "--model", "net.py:Net",
            "--patience", PATIENCE, "--min-clients", "2",
        )  # fmt: skip
        self.commands.start("serve.log", "serve", "clinic", "--bind", "127.0.0.1")
        self.line = Proxy(dialled, port)
        self.nodes = {"north": self.join_north(dialled), "west": self.join_west()}
        self.nodes["south"] = self.commands.join("south", str(folder / "south.fault"))
        until("the SuperLink listens", lambda: "listens" in self.commands.text("serve.log"))
        self.training = self.commands.start("start.log", "start", "clinic")

    def join_north(self, port: int) -> Process:
        """North dials a line that can be cut."""
        kit = Kit.read(self.folder / "clinic/kits/north-kit.zip")
        agreement = dataclasses.replace(kit.agreement, port=port)
        dataclasses.replace(kit, agreement=agreement).write(self.folder / "north.zip")
        return self.commands.start("north.log", "join", "north.zip", "--data", "npz:north.npz")

    def join_west(self) -> Process:
        """West has a disk of 4 MB in a mount namespace of its own, where that can be; we reach it through /proc."""
        (self.folder / "west-node").mkdir()
        small = ("unshare", "-Urm", "sh", "-c", 'mount -t tmpfs -o size=4M tmpfs west-node && exec "$@"', "sh")
        return self.commands.start(
            "west.log", "join", "clinic/kits/west-kit.zip", "--data", "npz:west.npz", before=small if SMALL_DISK else ()
        )

    def west_home(self) -> Path:
        """West's folder, as west sees it."""
        return Path(f"/proc/{self.nodes['west'].pid}/root{self.folder}/west-node")

    def dropped(self) -> list[int]:
        """How many replies each round has missed."""
        return [line["dropped"] for line in self.commands.metrics()]

    def said(self, text: str) -> bool:
        """Whether the training has said so."""
        return text in self.commands.text("start.log")

    def whole_again(self) -> None:
        """Wait for a round that began after now and has all replies."""
        have = len(self.dropped())
        until("a round with all", lambda: not all(self.dropped()[have + 1 :]))

    def close(self) -> None:
        self.line.close()
        self.commands.close()


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clinic]:
    made = Clinic(tmp_path_factory.mktemp("trouble"))
    yield made
    made.close()


def test_a_slow_node_misses_rounds_of_its_own_only(clinic: Clinic) -> None:
    until("two rounds", lambda: len(clinic.dropped()) >= 2)
    west = clinic.nodes["west"].pid
    os.kill(west, signal.SIGSTOP)  # its SuperNode lives: it is connected, and slow
    late = f"no reply of client west: it took longer than patience = {PATIENCE} seconds"
    until("a round without west", lambda: clinic.said(late))
    os.kill(west, signal.SIGCONT)
    clinic.whole_again()


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))


@pytest.mark.skipif(not SMALL_DISK, reason="no user namespaces here")
def test_a_node_with_a_full_disk_says_so_and_comes_back_when_there_is_room(clinic: Clinic) -> None:
    filler = clinic.west_home() / "filler"
    with pytest.raises(OSError, match="No space left"):
        fill(filler)
    until(
        "west says so",
        lambda: clinic.said("no reply of client west: it could not read or write a file (No space left on device)"),
    )
    assert not clinic.said(str(clinic.folder))  # no path of a node is reported
    filler.unlink()
    clinic.whole_again()
    assert clinic.nodes["west"].poll() is None


def test_a_cut_of_90_seconds_costs_a_node_its_rounds_and_a_second_fault_makes_the_run_wait(clinic: Clinic) -> None:
    clinic.line.cut.set()
    over = time.monotonic() + CUT
    have = len(clinic.dropped())
    until("rounds without north", lambda: clinic.dropped()[have + 1 :].count(1) >= 2)

    (clinic.folder / "south.fault").touch()  # now one of three is left, and two are needed
    waiting = re.compile(r"waiting for 1 more of at least 2 clients .*south: it raised RuntimeError")
    until("south says so, and the run waits", lambda: waiting.search(clinic.commands.text("start.log")) is not None)
    waits = len(clinic.dropped())
    time.sleep(5)
    assert len(clinic.dropped()) == waits
    (clinic.folder / "south.fault").unlink()
    until("rounds go on", lambda: len(clinic.dropped()) >= waits + 2)
    assert not clinic.said("patient")  # what an error says stays at the node
    assert "patient 7" in clinic.commands.text("south.log")

    time.sleep(max(0.0, over - time.monotonic()))
    clinic.line.cut.clear()
    clinic.whole_again()


def test_no_round_is_lost_and_no_private_state_is_out_of_step(clinic: Clinic) -> None:
    """Runs after the others."""
    clinic.commands.run("federation", "stop", "clinic")
    assert clinic.training.wait(LONG) == 130
    rounds = [line["round"] for line in clinic.commands.metrics()]
    assert rounds == list(range(1, len(rounds) + 1))
    if SMALL_DISK:
        shutil.copytree(clinic.west_home() / "runs", clinic.folder / "west-node" / "runs")
    variates_add_up(clinic.folder)
