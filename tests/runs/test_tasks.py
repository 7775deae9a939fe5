"""Numbers and several labels from a real table to predictions, reports, comparisons and exported models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression
from sklearn.metrics import mean_absolute_error, r2_score

import fedframe
from fedframe.analysis.export import export
from fedframe.errors import FedframeError
from fedframe.experiments.gain import gain
from fedframe.report.page.build import write_page
from fedframe.runs.folder import RunFolder
from fedframe.runs.gain import lines_of
from fedframe.runs.predictor import predict_file
from fedframe.util.files import read_json
from tests.data.conftest import sentence
from tests.helpers import same_file

SITES = ("north", "south", "west")


def diabetes(path: Path, rows: slice = slice(None), columns: tuple[str, ...] = ("progression",)) -> str:
    """scikit-learn's table of 442 patients; of several columns the others are made of the first."""
    table = load_diabetes(scaled=False)
    site = np.array(SITES)[np.random.default_rng(0).integers(3, size=len(table.target))]
    y = [table.target, (table.target > 140).astype(int), (table.data[:, 2] > 26).astype(int)][: len(columns)]
    lines = [",".join([*table.feature_names, "site", *columns])]
    lines += [",".join(map(str, row)) for row in list(zip(*table.data.T, site, *y, strict=True))[rows]]
    path.write_text("\n".join(lines) + "\n")
    return f"csv:{path}"


def train(data: str, folder: Path, **settings: Any) -> fedframe.Result:
    usual = {"label": "progression", "task": "regression", "rounds": 8, "epochs": 2, "model": "mlp:32", "lr": 0.03}
    return fedframe.run("fedprox", data=data, out=folder, progress=False, **{**usual, "workers": 1, **settings})


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> fedframe.Result:
    folder = tmp_path_factory.mktemp("regression")
    return train(diabetes(folder / "diabetes.csv"), folder / "run", seed=1)


def test_a_federated_net_predicts_about_as_well_as_linear_regression(result: fedframe.Result) -> None:
    table = load_diabetes(scaled=False)
    source = fedframe.data.load_source(result.settings.data, label="progression", task="regression", seed=1)
    assert source.test is not None
    assert source.target is not None
    x, y = (
        source.train.x.take(torch.arange(len(source.train))).numpy(),
        source.target.unscaled(source.train.targets).numpy(),
    )
    x_test, y_test = (
        source.test.x.take(torch.arange(len(source.test))).numpy(),
        source.target.unscaled(source.test.targets).numpy(),
    )
    linear = mean_absolute_error(y_test, LinearRegression().fit(x, y).predict(x_test))
    own = result.model.probabilities(x_test).numpy()
    measures = result.summary["measures"]["generic"]
    assert result.scores["generic"]["final"] == pytest.approx(mean_absolute_error(y_test, own), rel=1e-4)
    assert measures["r2"]["value"] == pytest.approx(r2_score(y_test, own), rel=1e-4)
    assert result.scores["generic"]["final"] < 1.2 * linear
    assert measures["mae"]["low"] < measures["mae"]["value"] < measures["mae"]["high"]
    assert table.target.std() > result.scores["generic"]["final"]


def test_summaries_speak_of_errors_and_the_worst_served_has_the_largest(result: fedframe.Result) -> None:
    summary = result.summary
    assert summary["metric"] == "mae"
    assert summary["definitions"]["generic"].startswith("mean absolute error of the shared model")
    assert "lower is better" in summary["definitions"]["metric"]
    scores = read_json(result.folder / "client_scores.json")["client"]
    assert summary["spread"]["client"]["min"] == max(scores)
    assert summary["spread"]["client"]["max"] == min(scores)
    assert summary["per_class"] == {}
    assert "%" not in repr(result)


def test_any_number_of_workers_and_a_stop_give_the_same_bits(result: fedframe.Result, tmp_path: Path) -> None:
    other = train(result.settings.data, tmp_path / "workers", seed=1, workers=2)
    assert same_file(result.folder / "model.safetensors", other.folder / "model.safetensors")
    resumed = fedframe.resume(other.folder, from_round=7, progress=False)
    assert same_file(result.folder / "model.safetensors", resumed.folder / "model.safetensors")


def test_predictions_are_in_the_units_of_the_table(result: fedframe.Result, tmp_path: Path) -> None:
    diabetes(tmp_path / "new.csv", slice(0, 5))
    lines = list(predict_file(result.folder, tmp_path / "new.csv", None, 5))
    found = [line.split("\t") for line in lines]
    assert [line[1] for line in found] == ["progression"] * 5
    values = np.array([float(line[2]) for line in found])
    assert ((values > 20) & (values < 400)).all()
    pandas = pytest.importorskip("pandas")
    table = result.model.predict_table(pandas.read_csv(tmp_path / "new.csv"))
    np.testing.assert_allclose(table["progression"], values, rtol=1e-4)
    own = result.personal("north").predict(np.asarray(load_diabetes(scaled=False).data[:2]))
    assert all(isinstance(value, float) for value in own)


def test_a_new_client_is_scored_by_the_runs_metric(result: fedframe.Result, tmp_path: Path) -> None:
    new = result.personalise(diabetes(tmp_path / "east.csv", slice(300, None)), progress=False, name="east")
    assert new.summary["metric"] == "mae"
    assert 20 < new.summary["scores"]["personal"] < 90
    assert new.summary["definitions"]["personal"].startswith("mean absolute error")


@pytest.mark.slow
def test_gain_report_and_export_know_that_less_is_better(result: fedframe.Result, tmp_path: Path) -> None:
    content = gain(result.folder, progress=False)
    for row in content["clients"]:
        joined = row[row["joined"]]["value"]
        assert row["gain"]["value"] == pytest.approx(row["alone"]["value"] - joined)
        assert row["paired"]
    assert "%" not in "".join(lines_of(content)).replace("95 %", "")
    page = write_page([result.folder], tmp_path / "page.html").read_text()
    assert '"scoring":{"share":false,"sign":-1,"task":"regression"}' in page.replace('": ', '":').replace(', "', ',"')
    made = export(result.folder, "torch", out=tmp_path / "export")
    card = (made.folder / "MODEL_CARD.md").read_text()
    assert "predicted numbers in their own units: progression" in card
    assert "| R2 |" in card
    net = torch.export.load(made.file).module()
    rows = torch.as_tensor(load_diabetes(scaled=False).data[:3], dtype=torch.float32)
    torch.testing.assert_close(net(rows), result.model.probabilities(rows), rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_a_comparison_takes_the_smaller_error_for_the_better(tmp_path: Path) -> None:
    found = fedframe.compare(
        ["fedavg"], data=diabetes(tmp_path / "d.csv"), label="progression", task="regression", rounds=3, epochs=1,
        model="mlp:16", workers=1, seeds=1, sweep={"lr": [0.0001, 0.05]}, out=tmp_path / "compare", progress=False,
        personal=False,
    )  # fmt: skip
    assert found.tuned is not None
    means = {str(trial.candidate): trial.mean for trial in found.tuned.trials}
    chosen = str(found.chosen("fedavg"))
    assert means[chosen] == min(value for value in means.values() if value is not None)
    assert "0.05" in chosen
    text = found.table()
    assert "Mean absolute error," in text
    assert "in percent" not in text
    assert found.target is None


@pytest.mark.slow
def test_the_smallest_error_is_the_bold_one_in_latex_and_in_its_own_units(tmp_path: Path) -> None:
    found = fedframe.compare(
        ["fedavg?lr=0.0001", "fedavg?lr=0.05"], data=diabetes(tmp_path / "d.csv"), label="progression",
        task="regression", rounds=3, epochs=1, model="mlp:16", workers=1, seeds=2, out=tmp_path / "compare",
        progress=False, personal=False,
    )  # fmt: skip
    means = {label: found.scores[label]["generic.final"].mean or 0.0 for label in found.labels}
    text = (tmp_path / "compare" / "comparison.tex").read_text()
    assert min(means.values()) < 0.9 * max(means.values())
    assert rf"\textbf{{{min(means.values()):.4g} " in text
    assert rf"\textbf{{{max(means.values()):.4g} " not in text


def test_several_labels_of_a_table(tmp_path: Path) -> None:
    data = diabetes(tmp_path / "labels.csv", columns=("progression", "severe", "heavy"))
    data += "?drop=progression"
    result = train(data, tmp_path / "run", label="severe,heavy", task="auto", rounds=12, lr=0.3)
    assert result.settings.task == "multilabel"
    assert result.summary["metric"] == "auroc"
    assert result.scores["generic"]["final"] > 0.8  # type: ignore[operator]
    table = result.summary["measures"]["generic"]["per_label"]
    assert table["heavy"]["auroc"]["value"] > 0.95  # it is a function of a column
    lines = list(predict_file(result.folder, tmp_path / "labels.csv", None, 5))
    name, *pairs = lines[0].split("\t")
    assert name == "0"
    assert pairs[::2] == ["severe", "heavy"]
    assert set(result.model.predict(load_diabetes(scaled=False).data[:30])[0]) <= {"severe", "heavy"}


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"metric": "auroc"}, "does not measure regression; use mae"),
        ({"class_weights": "balanced"}, "is about classes, and the task is regression"),
        ({"positive": "sick"}, "is about classes"),
        ({"measure": "collapse"}, "use measure = drift,cka"),
        ({"partition": "longtail:10+iid", "clients": 3}, "long tail is about classes"),
        ({"task": "auto"}, "Set task = regression"),
        ({"task": "multilabel"}, "other values than 0 and 1"),
    ],
)
def test_settings_about_classes_are_refused(settings: dict[str, Any], part: str, tmp_path: Path) -> None:
    data = diabetes(tmp_path / "d.csv")
    said = sentence(lambda: train(data, tmp_path / "run", **settings), FedframeError)
    assert part in said
    assert not (tmp_path / "run").exists()


def test_drift_and_cka_are_measured_without_classes(tmp_path: Path) -> None:
    result = train(diabetes(tmp_path / "d.csv"), tmp_path / "run", rounds=2, measure="drift,cka")
    assert any("drift" in name for name in result.history[-1])


def test_configs_of_earlier_versions_are_about_classes(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("method: fedavg\ndata: digits\n")
    assert RunFolder(tmp_path).settings().task == "classification"
