"""Sums over a real network: a node that comes late and one that is forgotten, with processes killed by id in between.

No sum may be counted twice, and none lost: the model has the bits of trainings that nothing has disturbed.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedframe.util.files import read_json
from fedframe.util.processes import free_ports
from tests.federation.commands import LONG, MEMBERS, PROGRAM, Commands, commands, until, write_data
from tests.helpers import same_file

pytestmark = pytest.mark.slow

__all__ = ["commands"]
NET = """
import os
import time
from pathlib import Path

from torch import nn


class Net(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.layer = nn.Linear(shape[0], 8)

    def forward(self, x):
        while len(x) > 8 and Path(os.environ.get("FAULT") or "no such file").exists():
            time.sleep(0.1)
        return self.layer(x).relu()
"""


def sent(commands: Commands, name: str) -> int:
    """How often a node has sent its sums."""
    return commands.text(f"{name}.log").count("statistics in ")


def test_a_late_node_and_a_forgotten_one_survive_kill_9(commands: Commands) -> None:
    folder = commands.folder
    write_data(folder)
    (folder / "net.py").write_text(NET)
    (port,) = free_ports(1)
    commands.run(
        "federation", "new", "clinic", "--nodes", ",".join(MEMBERS), "--host", "127.0.0.1", "--port", str(port),
        "--like", "npz:public.npz", "--method", "analytic", "--model", "net.py:Net", "--set", "analytic.width=20",
    )  # fmt: skip
    commands.start("serve.log", "serve", "clinic", "--bind", "127.0.0.1")
    until("the SuperLink listens", lambda: "listens" in commands.text("serve.log"))
    for name in ("north", "south"):
        commands.join(name)
    training = commands.start("start.log", "start", "clinic", "--without", "west")
    assert training.wait(LONG) == 0, commands.text("start.log")
    run = folder / "clinic/runs/1"
    assert read_json(run / "summary.json")["clients"] == 2
    assert {path.name for path in (run / "sums").iterdir()} == {f"{k:06d}-0.safetensors" for k in (0, 1)}

    # West comes; while there is a file `busy`, it gets no further with its samples. The first update is killed as soon
    # as it has begun to write, the second goes through.
    busy = folder / "busy"
    west = commands.join("west", str(busy))
    until("west is there", lambda: "connected" in commands.text("west.log").lower())
    first = commands.start("update.log", "update", "clinic")
    until("an update writes", lambda: (run / ".changing").exists() or first.poll() is not None)
    os.kill(first.pid, signal.SIGKILL) if first.poll() is None else None
    first.wait()

    def all_sums(run: Path) -> bool:
        updating = commands.start("update.log", "update", "clinic")
        assert updating.wait(LONG) == 0, commands.text("update.log")
        return len(list((run / "sums").iterdir())) == 3

    until("west is added", lambda: all_sums(run))
    changes = [(each["what"], each["client"]) for each in read_json(run / "summary.json")["changes"]]
    assert changes == [("join", "west")]

    # All three from the start. While west is busy and the two others have sent, west and the training are killed. The
    # SuperLink lets west in when it has missed it for a minute: the training ends without it, and an update adds it.
    busy.touch()
    before = {name: sent(commands, name) for name in ("north", "south")}
    cut = commands.start("start.log", "start", "clinic", "--new")
    until("two have sent", lambda: all(sent(commands, name) > count for name, count in before.items()))
    os.kill(west.pid, signal.SIGKILL)
    cut.kill()
    assert (west.wait(), cut.wait()) == (-signal.SIGKILL, -signal.SIGKILL)
    busy.unlink()
    commands.join("west")
    again = commands.start("start.log", "start", "clinic")
    assert again.wait(LONG) == 0, commands.text("start.log")
    whole = folder / "clinic/runs/2"
    until("west is back", lambda: all_sums(whole))
    assert same_file(run / "model.safetensors", whole / "model.safetensors")

    # South is forgotten, by a command that is killed on the way and repeated; then all from the start without it.
    cut = subprocess.Popen([PROGRAM, "forget", "clinic/runs/2", "--client", "south"], cwd=folder)
    until("it writes", lambda: (whole / ".changing").exists() or cut.poll() is not None)
    cut.kill()
    cut.wait()
    commands.run("forget", "clinic/runs/2", "--client", "south")
    third = commands.start("start.log", "start", "clinic", "--new", "--without", "south")
    assert third.wait(LONG) == 0, commands.text("start.log")
    assert same_file(whole / "model.safetensors", folder / "clinic/runs/3/model.safetensors")
    assert [each["what"] for each in read_json(whole / "summary.json")["changes"]] == ["forget"]
    assert not list(whole.rglob("000001-*"))
