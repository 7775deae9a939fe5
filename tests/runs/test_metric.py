"""The metric of a run: what its scores are, on terminal, in its files, in comparisons and in the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

import fedframe
from fedframe.core.evaluation import EASIER_TASK
from fedframe.core.measures import METRICS
from fedframe.errors import SettingError
from fedframe.runs.progress import closing_lines
from fedframe.settings import METRICS as SETTING_METRICS
from fedframe.util.files import read_json
from tests.helpers import Recorder

SMALL: dict[str, Any] = {
    "model": "mlp:16", "clients": 3, "partition": "iid", "rounds": 3, "epochs": 1, "workers": 1, "local_test": 0.3,
}  # fmt: skip


def rare(share: float = 0.06, seed: int = 0) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    y = np.where(draw.random(900) < share, "sick", "well")
    x = draw.normal(size=(900, 4)).astype(np.float32)
    x[:, 0] += 1.5 * (y == "sick")
    return {"x_train": x[:600], "y_train": y[:600], "x_test": x[600:], "y_test": y[600:]}


def test_settings_and_formulas_know_the_same_metrics() -> None:
    assert tuple(METRICS) == SETTING_METRICS


@pytest.mark.slow
def test_on_imbalanced_data_scores_are_balanced_accuracy_and_the_majority_is_named_at_once(tmp_path: Path) -> None:
    seen = Recorder()
    result = fedframe.run("fedavg", data=rare(), out=tmp_path / "run", progress=seen, **SMALL)
    truth = rare()["y_test"]
    predicted = result.model.predict(rare()["x_test"])
    share = np.mean(truth == "well")
    assert f"the majority class alone would score {100 * share:.1f} %" in seen.notes[0]
    assert result.settings.metric == "balanced_accuracy"
    assert result.scores["generic"]["final"] == pytest.approx(balanced_accuracy_score(truth, predicted))
    found = result.summary["measures"]["generic"]
    assert found["accuracy"]["value"] == pytest.approx(np.mean(truth == np.array(predicted)))
    assert found["majority"] == {"class": "well", "share": pytest.approx(share)}


@pytest.mark.slow
def test_on_balanced_data_scores_are_accuracy_and_nothing_is_said(tmp_path: Path) -> None:
    seen = Recorder()
    result = fedframe.run("fedavg", data=rare(0.5), out=tmp_path / "run", progress=seen, **SMALL)
    assert result.settings.metric == "accuracy"
    assert not [note for note in seen.notes if "majority" in note]


@pytest.mark.slow
def test_accuracy_that_was_asked_for_stays_and_is_put_into_proportion(tmp_path: Path) -> None:
    seen = Recorder()
    result = fedframe.run("fedavg", data=rare(), metric="accuracy", out=tmp_path / "run", progress=seen, **SMALL)
    assert result.summary["metric"] == "accuracy"
    assert "Read accuracies against that" in seen.notes[0]


@pytest.mark.slow
def test_auroc_is_the_headline_of_rounds_summary_clients_and_terminal(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = fedframe.run("fedavg", data=rare(), metric="auroc", positive="sick", out=out, progress=False, **SMALL)
    classes = list(result.model.classes)
    scores = result.model.probabilities(rare()["x_test"])[:, classes.index("sick")].numpy()
    expected = roc_auc_score(rare()["y_test"] == "sick", scores)
    generic = result.scores["generic"]
    assert generic["final"] == generic["last"] == result.history[-1]["generic"] == pytest.approx(expected)
    assert generic["low"] < generic["final"] < generic["high"]  # type: ignore[operator]
    assert generic["samples"] == 300
    text = "\n".join(closing_lines(result.summary, out))
    assert f"{100 * expected:.1f} % [" in text
    assert "AUROC of the shared model" in text
    assert "(300 test samples)" in text
    assert "sensitivity at 90 % specificity" in text
    table = read_json(out / "client_scores.json")
    for k in range(3):
        assert table["client_low"][k] <= table["client"][k] <= table["client_high"][k]
    known = [value for value in table["client"] if value is not None]
    assert np.mean(known) == pytest.approx(result.scores["client"]["final"])


@pytest.mark.slow
def test_personal_never_stands_beside_generic_without_the_sentence(tmp_path: Path) -> None:
    result = fedframe.run("fedavg", data=rare(0.5), out=tmp_path / "run", progress=False, **SMALL)
    sentence = EASIER_TASK[1:]
    assert sentence in "\n".join(closing_lines(result.summary, result.folder))
    assert sentence in result.report(quick=True).read_text()
    assert sentence in result._repr_html_()
    assert result.summary["definitions"]["comparing"] == EASIER_TASK
    alone = fedframe.run("fedavg", data=rare(0.5), out=tmp_path / "other", progress=False, personal=False, **SMALL)
    assert sentence not in "\n".join(closing_lines(alone.summary, alone.folder))


@pytest.mark.slow
def test_a_client_without_both_classes_has_no_auroc_and_is_not_in_the_mean(tmp_path: Path) -> None:
    data = rare(0.5)
    user = np.where(data["y_train"] == "sick", 0, np.arange(600) % 2)  # client 1 has healthy people only
    given = {**SMALL, "clients": None, "partition": "user"}
    result = fedframe.run(
        "fedavg", data={**data, "user_train": user}, metric="auroc", out=tmp_path / "run", progress=False, **given
    )
    assert result.scores["client"]["clients"] == 1


@pytest.mark.slow
def test_the_report_has_every_measure_with_its_interval(tmp_path: Path) -> None:
    result = fedframe.run("fedavg", data=rare(), metric="f1", out=tmp_path / "run", progress=False, **SMALL)
    page = result.report(quick=True).read_text()
    assert '"metric":"F1"' in page.replace('": ', '":')
    for name in ("AUROC", "average precision", "sensitivity at 90 % specificity", "Brier score", "calibration error"):
        assert name in page
    assert "always saying so" in page


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"metric": "auc"}, "auroc"),
        ({"metric": "brier"}, "use auroc"),
        ({"positive": "ill"}, "'ill' is none of the classes"),
        ({"metric_at": 0}, "metric_at"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_written(
    tmp_path: Path, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(SettingError, match=says):
        fedframe.run("fedavg", data=rare(), out=tmp_path / "run", progress=False, **SMALL, **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_sensitivity_is_read_off_at_the_set_specificity(tmp_path: Path) -> None:
    found = [
        fedframe.run(
            "fedavg",
            data=rare(0.3),
            metric="sensitivity",
            metric_at=at,
            out=tmp_path / f"{at}",
            progress=False,
            **SMALL,
        ).scores["generic"]["final"]
        for at in (0.99, 0.5)
    ]
    assert found[0] < found[1]  # type: ignore[operator]


@pytest.mark.slow
def test_a_comparison_and_its_tuning_choose_by_the_metric(tmp_path: Path) -> None:
    from fedframe.experiments.compare.run import compare

    result = compare(
        ["fedavg", "fedprox"], data=rare(), metric="auroc", sweep={"lr": [0.0001, 0.1]}, seeds=1, out=tmp_path / "c",
        progress=False, **SMALL,
    )  # fmt: skip
    text = "\n".join(p.read_text() for p in (tmp_path / "c").glob("*.md"))
    assert "AUROC in percent" in text
    assert EASIER_TASK[1:] in text
    assert result.tuned is not None
    assert {trial.metric for trial in result.tuned.trials} == {"auroc"}
    found = [read_json(path) for path in (tmp_path / "c" / "tuning").rglob("summary.json")]
    assert {summary["metric"] for summary in found} == {"auroc"}
    tried = sorted(value for trial in result.tuned.trials for value in trial.values if value is not None)
    assert tried == sorted(summary["scores"]["generic"]["last_five"] for summary in found)


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy"])
def test_what_is_chosen_depends_on_the_metric(tmp_path: Path, metric: str) -> None:
    """Heavy weights of the rare class cost accuracy and win balanced accuracy."""
    from fedframe.experiments.compare.run import compare

    heavy = "sick=40,well=1"
    result = compare(
        ["fedavg"], data=rare(), metric=metric, sweep={"class_weights": ["sick=1,well=1", heavy]}, seeds=1, lr=0.1,
        out=tmp_path / "c", progress=False, **{**SMALL, "rounds": 6},
    )  # fmt: skip
    assert result.tuned is not None
    equal, weighed = (trial.mean for trial in result.tuned.trials)
    assert (weighed or 0.0) > (equal or 0.0) if metric == "balanced_accuracy" else (weighed or 1.0) < (equal or 0.0)
    assert (str(result.chosen("fedavg")) == f"class_weights={heavy}") is (metric == "balanced_accuracy")
