"""A survey, and the training after it, by the commands and over TLS: nobody writes down what data look like."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedframe.errors import DataError, RunError
from fedframe.federation.audit import verify
from fedframe.federation.health import check_health
from fedframe.util.files import read_json
from fedframe.util.processes import free_ports
from tests.federation.commands import LONG, MEMBERS, Commands, commands, until
from tests.federation.surveyed import make_draft, three_tables

pytestmark = pytest.mark.slow
__all__ = ["commands"]


def test_three_hospitals_with_other_tables_train_after_a_survey(commands: Commands) -> None:
    folder, (port,) = commands.folder, free_ports(1)
    data = {name: text.replace(f"{folder}/", "") for name, text in three_tables(folder, sick=0.12).items()}
    commands.run(
        "federation", "new", "clinic", "--nodes", "south,north,west", "--host", "127.0.0.1", "--port", str(port),
        "--survey", "--method", "fedavg", "--rounds", "2", "--model", "mlp:8",
    )  # fmt: skip
    kits = {name: f"clinic/kits/{name}-kit.zip" for name in MEMBERS}
    checked = commands.run("federation", "join", kits["north"], "--data", data["north"], "--check")
    refused = commands.start("refused.log", "join", kits["north"], "--data", data["north"])
    assert refused.wait(LONG) == 1
    assert "nobody here has approved the report above" in " ".join(commands.text("refused.log").split())
    assert not (folder / "north-node").exists()
    commands.start("serve.log", "serve", "clinic")
    nodes = {name: commands.start(f"{name}.log", "join", kits[name], "--data", data[name], "--yes") for name in MEMBERS}
    until("the SuperLink listens", lambda: "listens" in commands.text("serve.log"))
    said = commands.run("federation", "survey", "clinic")
    assert re.search(r"crp +number +all but south +median", said)
    assert "All members have the agreement now" in said
    assert re.search(r"(\d\d\.\d %) of the rows are 'no sepsis': the majority class alone would score \1", said)
    trained = commands.run("federation", "start", "clinic")
    assert re.search(
        r"(\d\d\.\d %) of the test samples are 'no sepsis': the majority class alone would score \1", trained
    )
    assert trained.index("Scores of this run are balanced accuracy") < trained.index("round 1/2")
    assert read_json(folder / "clinic/runs/1/summary.json")["metric"] == "balanced_accuracy"
    until("all have their models", lambda: all("The run is over" in commands.text(f"{m}.log") for m in MEMBERS))
    (run,) = (folder / "south-node" / "runs").iterdir()
    assert read_json(run / "summary.json")["metric"] == "balanced_accuracy"
    assert "Scores of this run are balanced accuracy" in " ".join(commands.text("south.log").split())
    assert len(commands.run("predict", str(run), "south.csv").splitlines()) == 120  # it has no crp, and needs none

    for name in MEMBERS:  # what was printed is what left, and the chain of it holds
        log = commands.text(f"{name}-node/leaves.log")
        assert [*re.findall(r" survey (\w+), ", log)] == ["form", "means", "spreads"]
        assert verify(folder / f"{name}-node").faults == []
    assert set(re.findall(r"as it is +column (\w+): ", checked)) == {"age", "crp", "sex", "ward", "patient_id"}
    assert verify(folder / "clinic").faults == []
    assert check_health(folder / "clinic") == f"A process serves {folder / 'clinic'} at port {port}."
    assert "takes part" in check_health(folder / "north-node")

    nodes["north"].terminate()  # and again with the very same command: the draft in the kit is not taken for new
    assert nodes["north"].wait(LONG) == 130
    again = commands.start("again.log", "join", kits["north"], "--data", data["north"], "--yes")
    until("it waits for work", lambda: "waiting for work" in commands.text("again.log") or again.poll() is not None)
    assert "has no agreement on data yet" not in commands.text("again.log")
    assert again.poll() is None


def test_the_health_of_what_does_not_run_is_bad(tmp_path: Path) -> None:
    made = make_draft(tmp_path)
    with pytest.raises(RunError, match="No process serves"):
        check_health(made.path)
    (tmp_path / "node").mkdir()
    with pytest.raises(DataError, match="no folder of a federation or of a node"):
        check_health(tmp_path / "node")
    (tmp_path / "node" / "node.txt").write_text("north")
    with pytest.raises(RunError, match="No process takes part"):
        check_health(tmp_path / "node")
