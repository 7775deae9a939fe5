"""A sweep chooses by validation data alone, and only what it has chosen is scored on the test data."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedframe
from fedframe.experiments.compare.plan import Tuning
from fedframe.experiments.compare.result import Comparison
from fedframe.experiments.compare.rows import read_rows
from fedframe.experiments.compare.tuning import Trial, Tuned, choose_select, score_of
from tests.helpers import blobs

pytestmark = pytest.mark.slow  # trains many small runs

SMALL: dict[str, Any] = {"rounds": 3, "model": "mlp:8", "batch": 8, "epochs": 1, "cores": 2, "progress": False}
RATES = [1e-5, 0.1, 1e30]  # learns nothing; learns; diverges


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    out = tmp_path_factory.mktemp("sweep") / "out"
    return fedframe.compare(
        ["fedavg", "fedprox"], seeds=2, sweep={"lr": RATES}, tuning_seeds=1, data=blobs(), out=out, **SMALL
    )


def configs(folder: Path) -> list[dict[str, Any]]:
    return [yaml.safe_load(path.read_text()) for path in sorted(folder.rglob("config.yaml"))]


def test_best_on_validation_data_is_chosen_and_only_it_is_run_on_all_data(swept: Comparison) -> None:
    assert str(swept.chosen("fedavg")) == "lr=0.1"
    final, tuning = configs(swept.plan.out / "runs"), configs(swept.plan.out / "tuning")
    assert {(c["method"], c["lr"], c["seed"], c["validate_share"]) for c in final} == {
        (method, 0.1, seed, 0.0) for method in ("fedavg", "fedprox") for seed in (0, 1)
    }
    assert {(c["method"], c["lr"], c["seed"], c["validate_share"]) for c in tuning} == {
        (method, lr, 0, 0.2) for method in ("fedavg", "fedprox") for lr in RATES
    }


def test_validation_grid_is_printed_and_saved(swept: Comparison) -> None:
    content = json.loads((swept.plan.out / "comparison.json").read_text())
    assert content["methods"][0]["chosen"] == {"lr": 0.1}
    trials = content["tuning"]["trials"]
    assert [trial["chosen"] for trial in trials] == [False, True, False] * 2
    assert trials[2]["mean"] is None
    assert trials[2]["states"] == ["diverged"]
    with (swept.plan.out / "tuning.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 6
    assert float(lines[1]["validation"]) == trials[1]["values"][0]
    text = swept.table()
    assert "| fedavg | lr=0.1 | " in text
    assert "neither the test set nor the clients' own test data were used" in text
    assert "fedavg: not eligible, because a run diverged: lr=1e+30" in text
    assert "Tuning budgets differ" not in text


def test_validation_scores_are_those_of_the_tuning_runs_on_the_validation_share(swept: Comparison) -> None:
    assert swept.tuned is not None
    trial = swept.tuned.trials[1]
    summaries = [json.loads(path.read_text()) for path in (swept.plan.out / "tuning").rglob("summary.json")]
    found = [s["scores"]["generic"]["last_five"] for s in summaries if s["method"] == "fedavg"]
    assert trial.values[0] in found
    assert all("held-out 20 % of the training data" in s["definitions"]["generic"] for s in summaries)


def test_test_labels_have_no_say_in_the_choice(swept: Comparison, tmp_path: Path) -> None:
    data = blobs()
    poisoned = {**data, "y_test": (data["y_test"] + 1) % 3}
    found = fedframe.compare(
        ["fedavg", "fedprox"], seeds=2, sweep={"lr": RATES}, tuning_seeds=1, data=poisoned, out=tmp_path / "o", **SMALL
    )
    assert found.tuned is not None
    assert swept.tuned is not None
    assert found.tuned.plain() == swept.tuned.plain()
    before, after = (c.scores["fedavg"]["generic.final"].values for c in (swept, found))
    assert before != after  # while the test scores do know them


def test_choice_by_personal_scores_and_methods_without_a_shared_model(tmp_path: Path) -> None:
    found = fedframe.compare(
        ["fedper", "fedavg?lr=0.1"], seeds=1, sweep={"lr": RATES[:2]}, data=blobs(), out=tmp_path / "o", **SMALL
    )
    assert found.tuned is not None
    assert found.tuned.tuning.select == "personal.final"
    assert str(found.chosen("fedper")) == "lr=0.1"
    assert found.chosen("fedavg lr=0.1") is None
    assert "Tuning budgets differ; numbers of candidates: fedper 2, fedavg lr=0.1 1." in found.table()


def test_method_all_of_whose_candidates_diverge_is_shown_as_such(tmp_path: Path) -> None:
    found = fedframe.compare(
        ["fedavg?lr=[1.0e+30,1.0e+31]&label=bad", "fedavg"], seeds=1, data=blobs(), out=tmp_path / "o", **SMALL
    )
    assert found.outcomes["bad"] == []
    assert "| bad | diverged in tuning |" in found.table()
    assert found.differences["fedavg"]["generic.final"].pairs == 0
    assert json.loads((tmp_path / "o" / "comparison.json").read_text())["methods"][0]["runs"] == []


def test_first_of_equals_is_chosen_and_a_missing_seed_is_not_eligible() -> None:
    (row,) = read_rows(["fedavg"], {"lr": [1, 2, 3, 4]})
    scores = [(0.5, 0.5), (0.9, None), (0.6, 0.6), (0.5, 0.7)]
    trials = [Trial(row, c, values, ("finished",) * 2) for c, values in zip(row.candidates, scores, strict=True)]
    assert Tuned(Tuning("generic", 0.2, (0, 1)), trials).chosen(row) == row.candidates[2]


def test_score_that_chooses_suits_the_methods() -> None:
    assert choose_select(read_rows(["fedavg", "spherefed"], {}), "") == "generic"
    assert choose_select(read_rows(["fedavg", "fedper"], {}), "") == "personal.final"
    assert choose_select(read_rows(["fedavg"], {}), "balanced") == "balanced"
    assert score_of("generic", "fedavg") == "generic.last_five"
    assert score_of("generic", "spherefed") == "generic.final"  # it has a server stage
