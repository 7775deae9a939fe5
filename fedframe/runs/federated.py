"""What a run folder tells of a federation's run, whose data stay at the nodes: whose folder it is, what to do with it.

Nothing here needs Flower, or more than the folder: a copy of it may be on a machine that has neither.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from fedframe.data.new_client import load_new_client
from fedframe.data.source import Samples
from fedframe.data.spec import DataSchema
from fedframe.util.files import read_json

NOTES = "federation.json"  # in the organiser's run folder: the run's name, and what the nodes said of themselves
NODE = "node.txt"  # in a node's folder: its name
OWN = "own.json"  # in a node's run folder: whose it is, and the data that it took part with


def is_organisers(run: Path) -> bool:
    """Whether a run folder is the organiser's, or a copy of it."""
    return (run / NOTES).exists()


def is_nodes(run: Path) -> bool:
    """Whether a run folder is a node's part of a federation's run."""
    return not is_organisers(run) and ((run / OWN).exists() or (home(run) / NODE).exists())


def train_again(run: Path) -> str:
    """The command that trains a federation again; it names the folder if that is known."""
    return start_command(home(run).as_posix() if is_organisers(run) else "FOLDER", test_data(run))


def start_command(folder: str, data: str | None) -> str:
    """The organiser's command for a new training."""
    given = f" --test-data {shlex.quote(data)}" if data else ""
    return f"fedframe federation start {shlex.quote(folder)} --new{given}"


def update_command(run: Path) -> str:
    """The organiser's command that adds late nodes to a finished run and sends its model to all."""
    return f"fedframe federation update {shlex.quote(home(run).as_posix())}"


def how_it_ends(run: Path) -> str:
    """What to do with a run that is not over yet."""
    if is_organisers(run):
        return f"go on with: fedframe federation start {shlex.quote(home(run).as_posix())}"
    name = node_name(run)
    there = shlex.quote(home(run).as_posix()) if name else "FOLDER"
    return (
        f"the model comes when the federation's training ends, if 'fedframe federation join {there} --data ...' runs "
        "here then; if it has ended without this node, ask the organiser for a copy of its run folder, and use: "
        f"fedframe personalise COPY --data ... --name {name or 'NAME'}"
    )


def not_here(run: Path) -> str:
    """What a run folder that is not the organiser's is good for: it has models, and scores of one node."""
    name = node_name(run)
    whose = f"is {name}'s part of a federation's run" if name else "is a part of a federation's run"
    own = f" --client {name}" if name else ""
    return (
        f"{run} {whose}: all members' scores are with the organiser (fedframe report FOLDER/runs/1 there). Once the "
        f"training is over, its own are here: fedframe report {shlex.quote(run.as_posix())}, and so is the model: "
        f"fedframe predict {shlex.quote(run.as_posix())} INPUT{own}"
    )


def home(run: Path) -> Path:
    """The folder of the federation, or of the node, that a run folder lies in."""
    named = len(run.parts) > 1 and ".." not in run.parts  # "." and "1" do not name what they lie in
    return (run if named else run.resolve()).parent.parent


def node_name(run: Path) -> str | None:
    """The name of the node whose run folder it is; None if it is not at a node."""
    path = home(run) / NODE
    return path.read_text().strip() if path.exists() else None


def test_data(run: Path) -> str | None:
    """The organiser's own test data, if the training was given any."""
    found = read_json(run / NOTES).get("test_data") if is_organisers(run) else None
    return str(found) if found else None


def load_test_set(form: DataSchema, data: str | None, label: str | None) -> Samples | None:
    """Test data that the organiser has of its own, in the form that is agreed: all samples of these data."""
    if data is None:
        return None
    source = load_new_client(data, form, share=None, default_share=0.0, label=label).source
    return source.test if source.test is not None else source.train
