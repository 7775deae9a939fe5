"""A federation by its commands, with processes killed by id: the run ends with the bits of a run without any trouble.

All three clients are needed in every round, and each has a control variate and a head of its own: the result could not
be the same if a finished round were lost, counted twice, or begun from another private state.
"""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest

pytest.importorskip("flwr")

from fedframe.util.files import read_tensors
from fedframe.util.processes import free_ports
from tests.federation.commands import LONG, MEMBERS, Commands, Process, commands, until, write_data
from tests.federation.together import run_together
from tests.helpers import comparable_scores, equal_states, same_file

pytestmark = pytest.mark.slow

__all__ = ["commands"]
ROUNDS = 9


def test_a_federation_survives_kill_9_of_a_node_of_the_training_and_of_the_superlink(commands: Commands) -> None:
    folder = commands.folder
    write_data(folder)
    (port,) = free_ports(1)
    commands.run(
        "federation", "new", "clinic", "--nodes", ",".join(MEMBERS), "--host", "127.0.0.1", "--port", str(port),
        "--like", "npz:public.npz", "--method", "scaffold+fedper", "--rounds", str(ROUNDS), "--model", "mlp:8",
        "--min-clients", "3",
    )  # fmt: skip
    serving = commands.start("serve.log", "serve", "clinic", "--bind", "127.0.0.1")

    def train() -> Process:
        return commands.start("start.log", "start", "clinic")

    def rounds() -> list[int]:
        return [line["round"] for line in commands.metrics()]

    nodes = {name: commands.join(name) for name in MEMBERS}
    until("the SuperLink listens", lambda: "listens" in commands.text("serve.log"))
    training = train()

    until("two rounds", lambda: len(rounds()) >= 2)
    os.kill(nodes["north"].pid, signal.SIGKILL)
    nodes["north"].wait()
    nodes["north"] = commands.join("north")
    # The SuperLink lets north in when it has missed it for a minute; the round waits for it, and is cut off once more.
    until("it waits for north", lambda: "waiting for 1 more of at least 3 clients" in commands.text("start.log"))
    os.kill(training.pid, signal.SIGKILL)
    training.wait()
    finished = rounds()
    training = train()
    until("two more rounds", lambda: len(rounds()) >= len(finished) + 2)
    assert "Going on after round" in commands.text("start.log")

    (superlink,) = psutil.Process(serving.pid).children()
    superlink.kill()
    until("the SuperLink is back", lambda: commands.text("serve.log").count("listens") == 2)

    finished = rounds()
    until("a round more", lambda: len(rounds()) > len(finished) or training.poll() is not None)
    os.kill(serving.pid, signal.SIGKILL)  # the SuperLink ends with it
    serving.wait()
    commands.start("serve.log", "serve", "clinic", "--bind", "127.0.0.1")
    until("the SuperLink is back again", lambda: commands.text("serve.log").count("listens") == 3)
    # Back soon enough, the training goes on as if nothing had happened; else it ends and says how to go on. That can
    # happen more than once on a machine that is so full that even a SuperLink which runs is silent for a minute.
    give_up = time.monotonic() + LONG
    while training.wait(LONG) != 0:
        last = commands.text("start.log").strip().splitlines()[-1]
        assert "go on with: fedframe federation start clinic" in last or "start it and go on" in last, last
        assert time.monotonic() < give_up, commands.text("start.log")
        training = train()

    assert rounds() == list(range(1, ROUNDS + 1))
    assert all(line["dropped"] == 0 for line in commands.metrics())
    until("all have their models", lambda: all("The run is over" in commands.text(f"{m}.log") for m in MEMBERS))
    here, there = run_together(folder).path, folder / "clinic/runs/1"
    assert same_file(here / "model.safetensors", there / "model.safetensors")
    assert comparable_scores(here) == comparable_scores(there)
    for client, name in enumerate(MEMBERS):
        (run,) = (folder / f"{name}-node" / "runs").iterdir()
        assert same_file(here / "model.safetensors", run / "model.safetensors")
        place = f"clients/000/{client:06d}/{ROUNDS:06d}.safetensors"
        private, expected = (read_tensors(path / place)[0] for path in (run, here))
        assert {"scaffold/c", "model/head.weight"} <= private.keys()
        assert equal_states(private, expected)
    assert len(commands.run("predict", str(run), "public.npz", "--client", name).splitlines()) == 60
    assert "finished" in commands.run("federation", "status", "clinic")
