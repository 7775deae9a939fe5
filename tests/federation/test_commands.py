"""Three hospitals by the commands: same bits as one process with all data, and what leaves is what was printed."""

from __future__ import annotations

import contextlib
import re
import sqlite3

import pytest

pytest.importorskip("flwr")

from fedframe.runs.folder import RunFolder
from fedframe.util.processes import free_ports
from tests.federation.commands import LONG, MEMBERS, Commands, commands, until, write_data
from tests.federation.together import run_together
from tests.helpers import same_file

pytestmark = pytest.mark.slow

__all__ = ["commands"]


def test_a_federation_by_its_commands_equals_one_process_with_all_data(commands: Commands) -> None:
    folder, (port,) = commands.folder, free_ports(1)
    write_data(folder)
    commands.run(
        "federation", "new", "clinic", "--nodes", "south,north,west", "--host", "127.0.0.1", "--port", str(port),
        "--like", "npz:public.npz", "--method", "fedloge", "--rounds", "3", "--model", "mlp:8",
    )  # fmt: skip
    checked = commands.run("federation", "join", "clinic/kits/north-kit.zip", "--data", "npz:north.npz", "--check")
    assert "45 training and 15 test samples" in checked
    assert not (folder / "north-node").exists()
    with contextlib.closing(sqlite3.connect(folder / "clinic/state/superlink.db")) as half:
        half.execute("CREATE TABLE _alembic_tmp_federation_app (app_id TEXT)")  # what a first start leaves if cut off
    commands.start("serve.log", "serve", "clinic", "--bind", "127.0.0.2")  # the organiser's line is at 127.0.0.1
    nodes = [commands.join(name) for name in MEMBERS]
    until("the SuperLink listens", lambda: "listens" in commands.text("serve.log"))
    printed_scores = commands.run("federation", "start", "clinic", "--test-data", "npz:public.npz")
    assert re.search(r"generic +\d+\.\d %.*client +\d+\.\d %.*personal +\d+\.\d %", printed_scores, re.DOTALL)
    until("all have their models", lambda: all("The run is over" in commands.text(f"{m}.log") for m in MEMBERS))
    assert "run 1: 3 of 3 rounds, finished" in commands.run("federation", "status", "clinic")

    here = run_together(folder, "npz:public.npz")
    assert same_file(here.path / "model.safetensors", folder / "clinic/runs/1/model.safetensors")
    for one, other in zip(here.metrics(), RunFolder(folder / "clinic/runs/1").metrics(), strict=True):
        for score in ("loss", "generic", "client", "personal"):
            assert one[score] == other[score], score

    for name in MEMBERS:
        (run,) = (folder / f"{name}-node" / "runs").iterdir()
        assert same_file(run / "model.safetensors", here.path / "model.safetensors")
    for options in ((), ("--client", name)):
        assert len(commands.run("predict", str(run), "public.npz", *options).splitlines()) == 60
    commands.run("personalise", "clinic/runs/1", "--data", "npz:west.npz", "--name", "west")  # as if it had been away
    assert len(commands.run("predict", "clinic/runs/1", "public.npz", "--client", "west").splitlines()) == 60
    looked, page = commands.run("report", "clinic/runs/1").splitlines()
    assert looked.startswith("Looking at the models")
    assert page == "Page: clinic/runs/1/report.html"
    (north, *_) = nodes
    north.terminate()
    assert north.wait(LONG) == 130
    said = commands.text("north.log")
    assert said.index("Joining clinic") < said.index(f"Connected to 127.0.0.1:{port}") < said.index("round 1: ")
    assert "north has left; the same command joins again." in said
    printed = set(re.findall(r"(?:each round|at the end)  (\S+): \S+", checked)) - {"numbers"}
    left = (folder / "north-node/leaves.log").read_text()
    sent = {
        name for line in left.splitlines() if " train: " in line for name in re.findall(r"(\S+) float\d\d \(", line)
    }
    assert sent == printed == {"update"}
    assert len(re.findall(r"round \d+ train:", left)) == 3
    # The first reply, how frequent the classes are, three rounds, scores of the last round's model before GA-FR changes
    # it, the last models, histograms of scores, and the word that all is over.
    assert left.count(" message of ") == 9
