"""Three hospitals by the commands: same bits as one process with all data, and what leaves is what was printed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from fedframe.api import JobMaker
from fedframe.data.federation import Federation
from fedframe.data.ragged import Ragged
from fedframe.data.source import ArrayInputs, Samples
from fedframe.federation.joining import Membership
from fedframe.federation.kit import Kit
from fedframe.federation.processes import free_ports
from fedframe.folder import RunFolder
from fedframe.session import execute
from tests.federation.commands import MEMBERS, Commands, commands, until, write_data
from tests.helpers import Recorder, same_file

__all__ = ["commands"]


def together(folder: Path) -> tuple[Federation, Membership]:
    """All nodes' data in one place, as nobody in a real federation has them."""
    found = [
        Membership(Kit.read(folder / f"clinic/kits/{name}-kit.zip"), f"npz:{folder / name}.npz", folder, None, None)
        for name in MEMBERS
    ]
    places = [member.federation for member in found]
    x = torch.cat([place.source.train.x.take(torch.arange(len(place.source.train))) for place in places])
    y = torch.cat([place.source.train.y for place in places])
    starts = torch.tensor([0, *(len(place.source.train) for place in places[:-1])]).cumsum(0)
    lists = []
    for name in ("train", "local_test"):
        rows = [getattr(place, name).values + start for place, start in zip(places, starts, strict=True)]
        offsets = torch.tensor([0, *map(len, rows)]).cumsum(0)
        lists.append(Ragged(offsets, torch.cat(rows)))
    source = replace(places[0].source, train=Samples(ArrayInputs(x), y))
    return replace(places[0], source=source, train=lists[0], local_test=lists[1]), found[0]


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
    commands.start("serve.log", "serve", "clinic", "--bind", "127.0.0.2")  # the organiser's line is at 127.0.0.1
    for name in MEMBERS:
        commands.join(name)
    until("the SuperLink listens", lambda: "listens" in commands.text("serve.log"))
    commands.run("federation", "start", "clinic", "--quiet")
    until("all have their models", lambda: all("The run is over" in commands.text(f"{m}.log") for m in MEMBERS))
    assert "run 1: 3 of 3 rounds, finished" in commands.run("federation", "status", "clinic")

    federation, member = together(folder)
    maker = JobMaker(member.settings.model_copy(update={"engine": "local", "workers": 1}), federation, None)
    here = RunFolder.create(folder / "here", maker.settings)
    execute(maker.make(here.path), here, Recorder())
    assert same_file(here.path / "model.safetensors", folder / "clinic/runs/1/model.safetensors")
    for one, other in zip(here.metrics(), RunFolder(folder / "clinic/runs/1").metrics(), strict=True):
        assert {k: one[k] for k in ("loss", "client", "personal")} == {
            k: other[k] for k in ("loss", "client", "personal")
        }

    for name in MEMBERS:
        (run,) = (folder / f"{name}-node" / "runs").iterdir()
        assert same_file(run / "model.safetensors", here.path / "model.safetensors")
        for options in ((), ("--client", name)):
            assert len(commands.run("predict", str(run), "public.npz", *options).splitlines()) == 60
    commands.run("personalise", "clinic/runs/1", "--data", "npz:west.npz", "--name", "late")  # a node that was away
    assert len(commands.run("predict", "clinic/runs/1", "public.npz", "--client", "late").splitlines()) == 60
    printed = set(re.findall(r"(?:a round|at last)  (\S+): \S+", checked)) - {"numbers"}
    left = (folder / "north-node/leaves.log").read_text()
    sent = {
        name for line in left.splitlines() if " train: " in line for name in re.findall(r"(\S+) float\d\d \(", line)
    }
    assert sent == printed == {"update"}
    assert len(re.findall(r"round \d+ train:", left)) == 3
    assert left.count(" letter of ") == 5  # the first word, three rounds, and the last models
