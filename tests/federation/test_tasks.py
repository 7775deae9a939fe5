"""Numbers and several labels in a federation whose nodes keep their tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes

pytest.importorskip("flwr")

from fedframe.data import load_source, make_federation
from fedframe.data.spec import DataSchema
from fedframe.errors import DataError, SettingError
from fedframe.federation import start
from fedframe.federation.agreement import Agreement
from fedframe.federation.create import form_from_data, form_from_description
from fedframe.network.node_data import read_share, write_share
from fedframe.report.page.build import write_page
from fedframe.runs.gain import lines_of
from fedframe.runs.predictor import Predictor
from fedframe.settings import Settings
from fedframe.util.files import read_json
from tests.data.conftest import sentence
from tests.federation.clinic import NAMES, make_clinic

TABLE = load_diabetes(scaled=False)
LABELS = "severe,heavy"


def write_rows(path: Path, rows: np.ndarray, target: str) -> str:
    """Some rows of scikit-learn's table with its number, or with two labels that are made of it."""
    x, y = TABLE.data[rows], TABLE.target[rows]
    columns = [*x.T, y] if target == "progression" else [*x.T, (y > 140).astype(int), (x[:, 2] > 26).astype(int)]
    lines = [",".join([*TABLE.feature_names, *target.split(",")])]
    lines += [",".join(map(str, row)) for row in zip(*columns, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return f"csv:{path}"


def form(folder: Path, target: str) -> DataSchema:
    """The form of a public sample of the table."""
    task = "regression" if target == "progression" else "multilabel"
    settings = Settings(label=target, task=task)
    return form_from_data(write_rows(folder / "sample.csv", np.arange(0, 442, 4), target), settings)


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("target", ["progression", LABELS])
def test_nodes_learn_together_what_no_class_is(
    target: str, secure: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed = form(tmp_path, target)
    made, _ = make_clinic(
        tmp_path, monkeypatch, tell=("north",), form=agreed, rounds=4, lr=0.05, epochs=2, secure=secure,
        write=lambda path, number: write_rows(path.with_suffix(".csv"), np.arange(number, 442, 4), target),
    )  # fmt: skip
    text = (made.path / "federation.yaml").read_text()
    again = Agreement.read(text, "federation.yaml").form
    assert again.target is not None
    assert again.target.names == tuple(target.split(","))
    start.start(made, progress=False)
    run = made.runs / "1"
    summary = read_json(run / "summary.json")
    metric = "mae" if target == "progression" else "auroc"
    assert (summary["metric"], summary["task"]) == (metric, agreed.task)
    nodes = {name: next((tmp_path / f"{name}-node/runs").iterdir()) for name in NAMES}
    own = [read_json(folder / "client_scores.json")["client"][0] for folder in nodes.values()]
    assert summary["scores"]["client"]["final"] == pytest.approx(np.mean(own), rel=1e-4)
    assert np.mean(own) < 75 if target == "progression" else np.mean(own) > 0.6
    pooled = summary["measures"]["client"]
    assert pooled["samples"] == sum(
        read_json(folder / "client_scores.json")["test_samples"][0] for folder in nodes.values()
    )
    if target == "progression":
        single = {name: read_json(folder / "summary.json")["measures"]["client"] for name, folder in nodes.items()}
        sizes = [each["samples"] for each in single.values()]
        mean = np.average([each["mae"]["value"] for each in single.values()], weights=sizes)
        assert pooled["mae"]["value"] == pytest.approx(mean, rel=1e-5)  # sums over nodes are those of all predictions
        assert set(pooled) == {"samples", "mae", "rmse", "r2", "per_target"}
    else:
        assert set(pooled["per_label"]) == {"severe", "heavy"}
    rows = {row["client"]: row for row in read_json(run / "gain.json")["clients"]}
    mine = rows["north"]
    assert mine["gain"] is not None
    sign = -1 if target == "progression" else 1
    joined = read_json(nodes["north"] / "gain.json")["clients"][0]
    assert joined["gain"]["value"] == pytest.approx(
        sign * (joined["personal"]["value"] - joined["alone"]["value"]), abs=1e-4
    )
    assert "not said" in lines_of(read_json(run / "gain.json"))[-1]
    predicted = Predictor.load(nodes["south"]).probabilities(TABLE.data[:50])
    assert predicted.shape == (50, len(again.outputs))
    if target == "progression":
        assert abs(float(predicted.mean()) - 152) < 60
    write_page([run], tmp_path / "page.html")


def test_a_node_with_other_targets_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = sentence(
        lambda: make_clinic(
            tmp_path, monkeypatch, form=form(tmp_path, "progression"),
            write=lambda path, number: write_rows(path.with_suffix(".csv"), np.arange(number, 442, 4), LABELS),
        ),
        DataError,
    )  # fmt: skip
    assert "name these columns: label = progression" in said


def test_a_target_can_be_described() -> None:
    found = form_from_description("height, weight", "12", "0", "1", "regression", "170,70", "10,15")
    assert found.target is not None
    assert found.target.names == ("height", "weight")
    assert found.target.mean is not None
    assert found.target.mean.tolist() == [170, 70]
    assert found.classes == ()
    one = form_from_description("cough", "12", "0", "1", "multilabel")
    assert one.outputs == ("cough",)
    for options, part in (
        (("height", "12", "0", "1", "regression"), "--target-mean"),
        (("a,a", "12", "0", "1", "multilabel"), "each once"),
        (("height", "12", "0", "1", "regression", "170", "0"), "above 0"),
    ):
        assert part in sentence(lambda given=options: form_from_description(*given), SettingError)  # type: ignore[misc]


@pytest.mark.parametrize(
    "damage", [("    std:\n    - ", "    std:\n    - -"), ("task: regression", "task: divination")]
)
def test_a_damaged_target_is_no_agreement(
    damage: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = make_clinic(
        tmp_path, monkeypatch, form=form(tmp_path, "progression"),
        write=lambda path, number: write_rows(path.with_suffix(".csv"), np.arange(number, 442, 4), "progression"),
    )  # fmt: skip
    text = (made.path / "federation.yaml").read_text()
    start_of_target = text.index("  target:")
    bad = text[:start_of_target] + text[start_of_target:].replace(*damage, 1)
    assert bad != text
    assert "no federation's agreement" in sentence(lambda: Agreement.read(bad, "federation.yaml"), DataError)


@pytest.mark.parametrize("target", ["progression", LABELS])
def test_a_nodes_share_of_local_data_keeps_what_is_learned(target: str, tmp_path: Path) -> None:
    task = "regression" if target == "progression" else "multilabel"
    source = load_source(write_rows(tmp_path / "all.csv", np.arange(442), target), label=target, task=task)
    federation = make_federation(source, partition="iid", clients=3, seed=0)
    write_share(tmp_path / "share", federation, [1])
    again = read_share(tmp_path / "share")
    assert (again.source.task, again.source.outputs) == (task, source.outputs)
    for mine, theirs in zip(
        again.train_batch(again.train[1]), federation.train_batch(federation.train[1]), strict=True
    ):
        assert torch.equal(mine, theirs)
    assert torch.equal(
        again.local_test_batch(again.local_test[1])[1], federation.local_test_batch(federation.local_test[1])[1]
    )
    if task == "regression":
        assert again.source.target is not None
        assert source.target is not None
        assert torch.equal(again.source.target.mean, source.target.mean)  # type: ignore[arg-type]
