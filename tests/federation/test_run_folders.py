"""Run folders of a federation, whose data stay at the nodes: every command on them does its work or says what to do."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from typer.testing import CliRunner

import fedframe
from fedframe.analysis import examine
from fedframe.cli import app
from fedframe.errors import DataError, FedframeError, SettingError
from fedframe.federation import start
from fedframe.federation.folder import FederationFolder
from fedframe.report.page.build import write_page
from fedframe.report.page.section import STAYS_AT_NODES
from tests.federation.clinic import CLASSES, make_clinic, write_arrays


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished training with test data of the organiser's own."""
    made, _ = make_clinic(tmp_path, monkeypatch)
    start.start(made, test_data=write_arrays(tmp_path / "public.npz", 9), progress=False)
    return made.runs / "1"


def sections(page: Path) -> dict[str, dict[str, object]]:
    """What the page's scripts draw, by section."""
    (text,) = re.findall(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page.read_text(), re.DOTALL)
    return {section["id"]: section for section in json.loads(text)["sections"]}


@pytest.mark.slow
def test_the_report_shows_the_organisers_test_data_and_is_calm_about_the_rest(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    found = sections(write_page([trained], notify=said.append))
    assert len(said) == 1, said  # that it looks at the models, and no error
    for shown in ("confusion", "calibration", "gram", "degeneration", "classes", "spread"):
        assert "missing" not in found[shown], found[shown]
    for elsewhere in ("partition", "features", "heads", "alike", "collapse"):
        assert found[elsewhere]["missing"] == STAYS_AT_NODES
    page = (trained / "report.html").read_text()
    assert "fedavg on the nodes&#x27; data" in page or "fedavg on the nodes' data" in page
    assert "on none" not in page
    assert "could not be examined" not in page
    matrix = np.array(examine(trained)["confusion"])
    public = np.load(trained.parents[2] / "public.npz")
    predicted = fedframe.Predictor.load(trained).predict(public["x"])
    assert matrix.tolist() == [
        [sum(p == said and t == true for p, t in zip(predicted, public["y"], strict=True)) for said in CLASSES]
        for true in CLASSES
    ]


@pytest.mark.slow
def test_without_test_data_the_report_says_that_data_stay_at_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = make_clinic(tmp_path, monkeypatch)
    start.start(made, progress=False)
    said: list[str] = []
    found = sections(write_page([made.runs / "1"], notify=said.append))
    assert len(said) == 1, said
    assert {found[id]["missing"] for id in ("calibration", "degeneration", "features")} == {STAYS_AT_NODES}
    assert "missing" not in found["confusion"]  # nodes have sent theirs as counts, which add up
    assert "missing" not in found["gram"]  # it is the model's alone


@pytest.mark.slow
def test_the_settings_of_a_federations_run_name_the_command_that_runs_it_again(trained: Path) -> None:
    data = trained.parents[2] / "public.npz"
    head = (trained / "config.yaml").read_text().splitlines()[0]
    assert head.endswith(f"Run again: fedframe federation start ../.. --new --test-data npz:{data}")
    again = re.escape(f"fedframe federation start {trained.parents[1]} --new --test-data npz:{data}")
    with pytest.raises(SettingError, match=f"data stay at the nodes; its organiser runs it again with: {again}$"):
        fedframe.run(config=trained / "config.yaml", progress=False)
    assert f"federation start {trained.parents[1]} --new" in write_page([trained], quick=True).read_text()


def command(*arguments: object) -> str:
    """What a command of the command line prints, or the sentence with which it ends."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exception is None or isinstance(done.exception, FedframeError | SystemExit), done.exception
    return done.output + str(done.exception or "")


@pytest.mark.slow
def test_a_finished_run_is_measured_and_not_resumed(trained: Path) -> None:
    assert "is finished" in command("resume", trained)
    assert fedframe.resume(trained, progress=False).scores["generic"]["final"] is not None
    assert "Accuracy" in command("measure", trained)


def nodes_run(trained: Path) -> Path:
    """The run folder of a node."""
    (found,) = (trained.parents[2] / "south-node" / "runs").iterdir()
    return found


@pytest.mark.slow
def test_a_nodes_run_folder_says_where_scores_are_and_how_to_predict(trained: Path) -> None:
    node = nodes_run(trained)
    for name in ("measure", "resume"):
        said = command(name, node)
        assert "south's part of a federation's run" in said, (name, said)
        assert f"fedframe predict {node} INPUT --client south" in said
        assert "unknown" not in said
    assert "federation start FOLDER --new" in (node / "config.yaml").read_text().splitlines()[0]
    assert len(fedframe.Predictor.load(node, "south").predict(np.zeros((2, 6), np.float32))) == 2


@pytest.mark.slow
def test_a_node_that_missed_the_end_hears_what_to_do(trained: Path) -> None:
    node = nodes_run(trained)
    (node / "model.safetensors").unlink()
    home = node.parents[1]
    for name in ("predict", "personalise", "resume", "measure"):
        more = {"predict": ["x.npz"], "personalise": ["--data", "npz:x.npz"]}.get(name, [])
        said = command(name, node, *more)
        assert f"fedframe federation join {home} --data" in said, (name, said)
        assert "fedframe personalise COPY --data ... --name south" in said
        assert "fedframe resume" not in said


@pytest.mark.slow
def test_an_unfinished_training_goes_on_with_start(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (trained / "summary.json").unlink()
    (trained / "model.safetensors").unlink()
    for name in ("predict", "resume", "measure"):
        said = command(name, trained, *(["x.npz"] if name == "predict" else []))
        assert said.strip().endswith(f"go on with: fedframe federation start {trained.parents[1]}"), said
    monkeypatch.chdir(trained)  # a folder can also be named by a dot, as the first line of config.yaml invites to
    assert command("resume", ".").strip().endswith(f"go on with: fedframe federation start {trained.parents[1]}")


@pytest.mark.slow
def test_a_member_that_was_away_at_the_end_makes_its_model_under_its_own_name(trained: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    own = fedframe.personalise(copy, f"npz:{tmp_path / 'south.npz'}", name="south", progress=False)
    inputs = np.load(tmp_path / "south.npz")["x"]
    for client in ("south", 1, "1"):  # the name and the number of the same client
        assert fedframe.Predictor.load(copy, client).predict(inputs) == own.model.predict(inputs)
    with pytest.raises(DataError, match="Client north has no personal model"):
        fedframe.Predictor.load(copy, "north")
    with pytest.raises(SettingError, match="already has a personal model 'south'"):
        fedframe.personalise(copy, f"npz:{tmp_path / 'south.npz'}", name="south", progress=False)


@pytest.mark.slow
def test_nobody_else_reads_an_organisers_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = make_clinic(tmp_path, monkeypatch)
    assert made.path.stat().st_mode & 0o777 == 0o700
    made.path.chmod(0o755)  # as an earlier version has left it
    start.start(FederationFolder.open(made.path), progress=False)
    assert made.runs.stat().st_mode & 0o777 == 0o700
