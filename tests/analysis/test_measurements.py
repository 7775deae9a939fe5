"""Measurements of a saved model by name: they agree with the examination and with plain loops."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score

import fedframe
from fedframe.analysis import examine
from fedframe.analysis.forms import Curves, Matrix, Measurement, Number, Points
from fedframe.analysis.measurements import MODEL, ModelMeasures
from fedframe.core.evaluation import ByClient, Scores
from fedframe.core.measures import Predictions
from fedframe.errors import DataError
from fedframe.runs.summary import f1_over_clients

FORMS = {"number": Number, "curves": Curves, "matrix": Matrix, "points": Points}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished run on digits with a sparse frozen classifier."""
    out = tmp_path_factory.mktemp("measurements") / "run"
    settings = {
        "data": "digits",
        "model": "mlp:32",
        "clients": 3,
        "rounds": 2,
        "epochs": 1,
        "partition": "longtail:5+iid",
    }
    fedframe.run("sse_c", out=out, personal=True, workers=1, progress=False, **settings)  # type: ignore[arg-type]
    return out


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Measurement]:
    run = ModelMeasures(folder, 0)
    return {name: measured(run) for name, (_, measured) in MODEL.items()}


@pytest.mark.slow
def test_every_measurement_has_the_form_it_says(found: dict[str, Measurement]) -> None:
    for name, (form, _) in MODEL.items():
        assert isinstance(found[name], FORMS[form]), name


@pytest.mark.slow
def test_pruning_and_degeneration_are_those_of_the_examination(folder: Path, found: dict[str, Measurement]) -> None:
    wanted = examine(folder, embedding="pca")["degeneration"]
    pruning, means = found["pruning"], found["degeneration"]
    assert isinstance(pruning, Curves)
    assert isinstance(means, Curves)
    assert [1 - point["kept"] for point in wanted["pruning"]] == pytest.approx([*pruning.lines[0].x])
    for line, key in zip(pruning.lines, ("accuracy", "smallest_kept"), strict=True):
        assert [*line.y] == pytest.approx([point[key] for point in wanted["pruning"]], rel=1e-5)
    for line, key in zip(means.lines, ("mean", "variance"), strict=True):
        assert [*line.y] == pytest.approx(wanted[key], rel=1e-5)


def test_sparse_etf_shows_as_such(found: dict[str, Measurement]) -> None:
    cosines, zeros = found["cosines"], found["zeros"]
    assert isinstance(cosines, Matrix)
    assert cosines.facts["least"] == pytest.approx(-1 / 9, abs=1e-4)
    assert cosines.facts["most"] == pytest.approx(-1 / 9, abs=1e-4)
    assert isinstance(zeros, Curves)
    assert zeros.facts["zeros in all"] == pytest.approx(0.6, abs=0.02)
    means = found["class_means"]
    assert isinstance(means, Points)
    assert len(means.x) == 10
    assert {*means.colour} <= {"many", "medium", "few"}


def test_f1_of_personal_models_is_in_the_summary(folder: Path) -> None:
    scores = json.loads((folder / "summary.json").read_text())["scores"]["personal"]
    assert 0 < scores["f1"] <= 1
    assert 0 < scores["f1_weighted"] <= 1


def test_f1_over_clients_is_the_mean_of_scikit_learns() -> None:
    draw, sizes = np.random.default_rng(0), [7, 0, 12, 5]
    labels, predicted = draw.integers(0, 4, (2, sum(sizes)))
    pooled = Predictions(torch.eye(4)[predicted], torch.from_numpy(labels), torch.from_numpy(predicted))
    each = ByClient([0, 1, 2, 3], [0.0] * 4, sizes)
    found = f1_over_clients(Scores(by_client={"personal": each}, pooled={"personal": pooled}))
    parts = [slice(0, 7), slice(7, 19), slice(19, 24)]  # the second client has no test data
    for key, average in (("f1", "macro"), ("f1_weighted", "weighted")):
        wanted = [f1_score(labels[part], predicted[part], average=average) for part in parts]
        assert found[key] == pytest.approx(np.mean(wanted))
    assert f1_over_clients(Scores()) == {}


@pytest.mark.slow
def test_run_that_shares_no_model_is_refused(tmp_path: Path) -> None:
    settings = {"data": "digits", "model": "mlp:8", "clients": 2, "rounds": 1, "epochs": 1}
    fedframe.run("local", out=tmp_path / "run", workers=1, progress=False, **settings)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="has no shared model"):
        ModelMeasures(tmp_path / "run", 0)
