"""The examination of finished runs: every entry against the run's own scores or a plain count."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import fedframe
from fedframe.analysis import examine
from fedframe.analysis.explanations import READINGS
from fedframe.analysis.finished_run import FinishedRun
from fedframe.analysis.summary_text import summary_sections
from fedframe.cli import app
from fedframe.data import load_source
from fedframe.errors import DataError, SettingError
from fedframe.runs.folder import RunFolder
from fedframe.util.files import read_json, read_tensors
from tests.helpers import blobs

SMALL: dict[str, Any] = {"rounds": 2, "epochs": 1, "workers": 1, "progress": False}
NEED_A_SHARED_MODEL = ("confusion", "per_class", "groups", "ece", "gram", "collapse", "degeneration", "embedding")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on digits."""
    folder = tmp_path_factory.mktemp("examined") / "run"
    fedframe.run("fedavg", data="digits", clients=6, out=folder, measure="all", **SMALL)
    return folder


@pytest.fixture(scope="module")
def found(run_folder: Path) -> dict[str, Any]:
    """Its examination."""
    return examine(run_folder, samples=300, embedding="pca")


def summary_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return content


@pytest.mark.slow
def test_accuracies_are_those_of_the_run(run_folder: Path, found: dict[str, Any]) -> None:
    summary = summary_of(run_folder)
    matrix = np.array(found["confusion"])
    assert matrix.trace() / matrix.sum() == pytest.approx(summary["scores"]["generic"]["final"])
    assert found["per_class"] == pytest.approx(list(summary["per_class"].values()), rel=1e-5)
    shares = {"many": [], "medium": [], "few": []}  # type: ignore[var-annotated]
    counts = summary["train_per_class"]
    before, total = 0, sum(counts.values())
    for name in sorted(counts, key=lambda name: -counts[name]):
        group = "many" if before < 0.75 * total else "medium" if before < 0.95 * total else "few"
        shares[group].append(summary["per_class"][name])
        before += counts[name]
    for group, values in shares.items():
        assert found["groups"][group] == (pytest.approx(np.mean(values), rel=1e-5) if values else None)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "spherefed"])  # the scores of the second are no logits
def test_calibration_is_that_of_the_saved_model(tmp_path: Path, method: str) -> None:
    fedframe.run(method, data="digits", clients=6, out=tmp_path / "run", personal=False, **SMALL)
    found = examine(tmp_path / "run", samples=20, embedding="pca")
    source = load_source("digits")
    assert source.test is not None
    p = fedframe.Predictor.load(tmp_path / "run").probabilities(source.test.x.take(torch.arange(len(source.test))))
    error = 0.0
    for m in range(15):
        rows = [i for i in range(len(p)) if m / 15 < float(p[i].double().max()) <= (m + 1) / 15]
        if rows:
            right = np.mean([int(p[i].argmax()) == int(source.test.y[i]) for i in rows])
            error += len(rows) / len(p) * float(abs(right - np.mean([float(p[i].max()) for i in rows])))
    assert found["ece"]["error"] == pytest.approx(error, rel=1e-4)


def test_partition_costs_and_points_are_those_of_the_run(run_folder: Path, found: dict[str, Any]) -> None:
    summary, partition, cost = summary_of(run_folder), found["partition"], found["cost"]
    assert np.array(partition["counts"]).sum(0).tolist() == list(summary["train_per_class"].values())
    assert np.array(partition["counts"]).sum(1).tolist() == partition["sizes"]
    assert partition["names"] == ["0", "1", "2", "3", "4", "5"]
    assert cost["bytes_up"] == sum(part["up"] for part in cost["by_part"].values())
    assert cost["parameters"] == summary["parameters"]
    run = FinishedRun(run_folder, None, None)
    points = found["embedding"]
    assert len(points["x"]) == len(points["y"]) == len(points["class"]) == len(points["client"]) == 300
    held = [sum(c == k for k in points["client"]) for c in range(6)]
    assert sum(held) == 300
    counts = np.zeros((6, 10), int)
    np.add.at(counts, (points["client"], points["class"]), 1)
    assert (counts <= run.job.federation.table().numpy()).all()


def test_classifiers_of_personal_models_are_compared(run_folder: Path, found: dict[str, Any]) -> None:
    drift = found["classifier_drift"]
    heads = []
    for client in drift["clients"]:
        own = read_tensors(run_folder / "personal" / "000" / f"{client:06d}.safetensors")[0]
        heads.append(own["head.weight"].double())
    cosines = [[float((a * b).sum(1).div(a.norm(dim=1) * b.norm(dim=1)).mean()) for b in heads] for a in heads]
    np.testing.assert_allclose(drift["cosine"], cosines, rtol=1e-5)
    lengths = [[float((a.norm(dim=1) - b.norm(dim=1)).abs().mean()) for b in heads] for a in heads]
    np.testing.assert_allclose(drift["norm_difference"], lengths, rtol=1e-4, atol=1e-6)
    others = [(i, j) for i in range(6) for j in range(6) if i != j]
    assert drift["mean_cosine"] == pytest.approx(np.mean([cosines[i][j] for i, j in others]), rel=1e-5)


@pytest.mark.slow
def test_collapse_at_the_end_is_that_of_the_last_round(run_folder: Path, found: dict[str, Any]) -> None:
    """FedAvg has no server stage, and all training samples fit into both draws."""
    last = json.loads((run_folder / "metrics.jsonl").read_text().splitlines()[-1])
    whole = examine(run_folder, samples=5000, embedding="pca")
    for name, value in whole["collapse"].items():
        assert value == pytest.approx(last[name], rel=1e-5), name
    assert found["collapse"] != whole["collapse"]  # other samples: made anew


@pytest.mark.slow
def test_file_is_read_again_as_long_as_it_fits(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = examine(run_folder, samples=100, embedding="pca")
    assert read_json(run_folder / "examination.json") == first
    with monkeypatch.context() as patch:
        patch.setattr("fedframe.analysis.examination.measure_run", lambda *_: pytest.fail("it was there already"))
        assert examine(run_folder, samples=100, embedding="pca") == first
    (run_folder / "examination.json").write_text("{")
    assert examine(run_folder, samples=100, embedding="pca") == first
    assert examine(run_folder, samples=100, embedding="pca", again=True) == first  # the same seed, the same figures


@pytest.mark.slow
def test_examining_leaves_the_run_and_the_random_state_alone(run_folder: Path) -> None:
    def files() -> dict[str, bytes]:
        paths = (path for path in run_folder.rglob("*") if path.is_file() and path.name != "examination.json")
        return {str(path): path.read_bytes() for path in paths}

    before, state, threads = files(), torch.get_rng_state(), torch.get_num_threads()
    examine(run_folder, samples=50, seed=1, embedding="pca")
    assert files() == before
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_every_figure_is_told_with_a_sentence(run_folder: Path, found: dict[str, Any]) -> None:
    history = RunFolder(run_folder).metrics()
    lines = [line for _, group in summary_sections(found, summary_of(run_folder), history) for line in group]
    named = {name for name, _, _ in lines}
    assert {"generic", "spread", "groups", "ece", "nc1", "nc4", "gram", "prototypes", "drift_cosine", "cka"} <= named
    assert {"classifier_drift", "degeneration", "flops_per_sample", "by_part"} <= named
    assert all(text.endswith(".") and len(text) < 250 for _, _, text in lines)
    measured = {key for line in history for key in line if not key.startswith("cka/")}
    assert {key for key in measured if key.startswith(("nc", "drift", "classifier", "proto", "step"))} <= set(READINGS)


@pytest.mark.slow
def test_command_prints_figures_and_how_to_read_them(run_folder: Path) -> None:
    done = CliRunner().invoke(app, ["measure", str(run_folder), "--samples", "100", "--embedding", "pca"])
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    for name in ("generic", "nc1", "classifier_drift", "by_part"):
        assert name in text
        assert READINGS[name] in text
    assert str(run_folder / "examination.json") in text.replace(" ", "") or "examination.json" in text


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedloge", "fedrane", "fedper", "fedproto", "scaffold", "local", "apple", "fedbn"])
def test_every_kind_of_method_can_be_examined(tmp_path: Path, method: str) -> None:
    model = "resnet20" if method == "fedbn" else "mlp:16"
    data = None if method == "fedbn" else blobs()
    more = {"data": "digits", "clients": 3, "data_share": 0.2} if data is None else {"data": data, "partition": "user"}
    result = fedframe.run(method, model=model, out=tmp_path / "run", **{**SMALL, "rounds": 1, **more})
    found = examine(result.folder, samples=40, embedding="pca", data=data)
    shared = result.scores["generic"]["final"] is not None
    for name in NEED_A_SHARED_MODEL:
        assert (found[name] is not None) == shared, name
    assert (found["classifier_drift"] is None) == (method == "fedbn")  # whose clients all have the shared classifier
    assert found["prototypes"]["own"] is not None
    assert found["cka"]["similarity"]
    assert found["cost"]["flops_per_sample"] > 0
    json.dumps(found, allow_nan=False)
    if shared:
        matrix = np.array(found["confusion"])
        assert matrix.trace() / matrix.sum() == pytest.approx(result.scores["generic"]["final"])


@pytest.mark.slow
def test_runs_from_python_are_examined_with_their_data_and_net(tmp_path: Path) -> None:
    class Net(nn.Module):
        dim = 6

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.layer(x))

    folder = fedframe.run("fedavg", data=blobs(), model=Net(), out=tmp_path / "run", partition="user", **SMALL).folder
    with pytest.raises(SettingError, match=r"data of .* came from Python; give it again: .*examine\(.*data="):
        examine(folder, net=Net())
    with pytest.raises(DataError, match=r"net of .* came from Python; give it again: .*net=MyNet"):
        examine(folder, data=blobs())
    with pytest.raises(DataError, match="have changed since the run"):
        examine(folder, data=blobs(seed=1), net=Net())
    assert examine(folder, data=blobs(), net=Net(), embedding="pca")["collapse"]["nc1"] > 0
    assert examine(folder, embedding="pca")["collapse"]["nc1"] > 0  # it is there by now


@pytest.mark.slow
def test_many_classes_are_cut_to_the_most_frequent(tmp_path: Path) -> None:
    data = blobs(clients=3, each=200, classes=103, dim=4)
    folder = fedframe.run("fedavg", data=data, model="mlp:8", partition="user", out=tmp_path / "run", **SMALL).folder
    found = examine(folder, data=data, samples=300, embedding="pca")
    shown = found["shown_classes"]
    assert len(shown) == 100
    counts = summary_of(folder)["train_per_class"]
    left_out = set(range(103)) - set(shown)
    assert max(counts[str(c)] for c in left_out) <= min(counts[str(c)] for c in shown)
    assert np.array(found["confusion"]).shape == np.array(found["gram"]["cosines"]).shape == (100, 100)
    assert len(found["per_class"]) == len(found["classes"]) == 103
    assert found["gram"]["ideal"] == pytest.approx(-1 / 102, rel=1e-5)
    assert len(found["degeneration"]["sorted_means"]) == 100
    assert np.array(found["partition"]["counts"]).shape == (3, 100)


def test_what_cannot_be_examined_ends_in_a_sentence(run_folder: Path, tmp_path: Path) -> None:
    unfinished = tmp_path / "unfinished"
    shutil.copytree(run_folder, unfinished)
    (unfinished / "model.safetensors").unlink()
    with pytest.raises(DataError, match="or go on with 'fedframe resume"):
        examine(unfinished)
    with pytest.raises(DataError, match="is not a run folder"):
        examine(tmp_path)
    with pytest.raises(SettingError, match="samples = 1 are too few"):
        examine(run_folder, samples=1)
    with pytest.raises(SettingError, match="did you mean 'tsne'"):
        examine(run_folder, embedding="t-sne")
