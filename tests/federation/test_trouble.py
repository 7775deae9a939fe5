"""Nodes in trouble, as real processes: slow, raising, out of disk, too few. The run goes on and nothing is lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedframe.federation.processes import free_ports
from tests.federation.commands import LONG, MEMBERS, Commands, commands, until, variates_add_up, write_data

__all__ = ["commands"]
PATIENCE = "15"
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


def begin(commands: Commands, rounds: int, *settings: str) -> None:
    write_data(commands.folder)
    (port,) = free_ports(1)
    commands.run(
        "federation", "new", "clinic", "--nodes", ",".join(MEMBERS), "--host", "127.0.0.1", "--port", str(port),
        "--like", "npz:public.npz", "--method", "scaffold", "--rounds", str(rounds), *settings,
    )  # fmt: skip
    commands.start("serve.log", "serve", "clinic", "--bind", "127.0.0.1")


def test_slow_raising_and_missing_nodes_cost_rounds_of_their_own_only(commands: Commands) -> None:
    folder = commands.folder
    (folder / "net.py").write_text(NET)
    begin(commands, 1000, "--model", "net.py:Net", "--patience", PATIENCE, "--min-clients", "2")
    nodes = {name: commands.join(name, str(folder / f"{name}.fault")) for name in MEMBERS}
    until("the SuperLink listens", lambda: "listens" in commands.text("serve.log"))
    training = commands.start("start.log", "start", "clinic")

    def whole_again() -> None:
        have = len(commands.metrics())
        until("a round with all", lambda: any(not line["dropped"] for line in commands.metrics()[have + 1 :]))

    until("two rounds", lambda: len(commands.metrics()) >= 2)
    os.kill(nodes["west"].pid, signal.SIGSTOP)  # its SuperNode lives: it is connected, and slow
    until("a round without west", lambda: any(line["dropped"] == 1 for line in commands.metrics()))
    assert f"no reply of client west: it took longer than patience = {PATIENCE} seconds" in commands.text("start.log")
    os.kill(nodes["west"].pid, signal.SIGCONT)
    whole_again()

    (folder / "south.fault").touch()
    until("south says so", lambda: "no reply of client south: it raised RuntimeError" in commands.text("start.log"))
    (folder / "south.fault").unlink()
    whole_again()
    assert "patient" not in commands.text("start.log")  # what an error says stays at the node
    assert "patient 7" in commands.text("south.log")

    for name in ("north", "west"):
        os.kill(nodes[name].pid, signal.SIGSTOP)
    until("it waits", lambda: "waiting for 1 more of at least 2 clients" in commands.text("start.log"))
    have = len(commands.metrics())
    for name in ("north", "west"):
        os.kill(nodes[name].pid, signal.SIGCONT)
    whole_again()
    assert [line["round"] for line in commands.metrics()][: have + 1] == list(range(1, have + 2))

    commands.run("federation", "stop", "clinic")  # and no private state is out of step
    assert training.wait(LONG) == 130
    variates_add_up(folder)


def can_mount() -> bool:
    """Whether a small disk of one's own can be made here."""
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run(["unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True)
    return tried.returncode == 0


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))


@pytest.mark.skipif(not can_mount(), reason="no user namespaces here")
def test_a_node_with_a_full_disk_says_so_and_comes_back_when_there_is_room(commands: Commands) -> None:
    folder = commands.folder
    (folder / "west-node").mkdir()
    begin(commands, 1000, "--model", "mlp:8")
    for name in ("north", "south"):
        commands.join(name)
    # A disk of 4 MB in a mount namespace of the node's own; we reach it through /proc.
    small = 'mount -t tmpfs -o size=4M tmpfs west-node && exec "$@"'
    node = commands.start(
        "west.log", "join", "clinic/kits/west-kit.zip", "--data", "npz:west.npz",
        before=("unshare", "-Urm", "sh", "-c", small, "sh"),
    )  # fmt: skip
    until("the SuperLink listens", lambda: "listens" in commands.text("serve.log"))
    training = commands.start("start.log", "start", "clinic")
    until("two rounds", lambda: len(commands.metrics()) >= 2)
    filler = Path(f"/proc/{node.pid}/root{folder}/west-node/filler")
    with pytest.raises(OSError, match="No space left"):
        fill(filler)
    until("a round without west", lambda: any(line["dropped"] for line in commands.metrics()))
    assert "no reply of client west: it could not read or write a file (No space left on device)" in commands.text(
        "start.log"
    )
    assert str(folder) not in commands.text("start.log")  # no path of a node is told
    filler.unlink()
    have = len(commands.metrics())
    until("west is back", lambda: any(not line["dropped"] for line in commands.metrics()[have + 1 :]))
    assert node.poll() is None
    commands.run("federation", "stop", "clinic")
    assert training.wait(LONG) == 130
    home = Path(f"/proc/{node.pid}/root{folder}/west-node")
    shutil.copytree(home / "runs", folder / "copy")
    node.terminate()
    node.wait(LONG)
    shutil.move(folder / "copy", folder / "west-node" / "runs")
    variates_add_up(folder)
