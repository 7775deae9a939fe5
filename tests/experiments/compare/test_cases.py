"""A sweep over what all methods share: a comparison per value, tuned anew in each, and all of them side by side."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedframe
from fedframe.errors import SettingError
from fedframe.experiments.compare.cases import read_cases
from fedframe.experiments.compare.request import ComparisonRequest, make_plan, make_plans
from fedframe.experiments.compare.result import Comparison
from fedframe.experiments.compare.tables import make_document
from fedframe.experiments.tables import latex, markdown, page

pytestmark = pytest.mark.slow  # trains many small runs

SMALL: dict[str, Any] = {"rounds": 2, "epochs": 1, "clients": 4, "model": "mlp:8", "cores": 2, "progress": False}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cases") / "out"


@pytest.fixture(scope="module")
def cases(out: Path) -> dict[str, Comparison]:
    """The learning rate is chosen, alpha is not: lr=0.01 learns nothing in two rounds."""
    sweep = {"lr": [0.0001, 0.1], "alpha": [0.1, 10]}
    return fedframe.compare_each(["fedavg", "fedprox"], seeds=2, tuning_seeds=1, sweep=sweep, out=out, **SMALL)


def configs(folder: Path) -> list[dict[str, Any]]:
    return [yaml.safe_load(path.read_text()) for path in sorted(folder.rglob("config.yaml"))]


def test_every_value_is_a_case_with_runs_of_its_own(cases: dict[str, Comparison], out: Path) -> None:
    assert [*cases] == ["alpha=0.1", "alpha=10"]
    for name, split in (("alpha=0.1", "dirichlet:0.1"), ("alpha=10", "dirichlet:10")):
        final, tuning = configs(out / name / "runs"), configs(out / name / "tuning")
        assert {(c["method"], c["partition"], c["lr"], c["seed"]) for c in final} == {
            (method, split, 0.1, seed) for method in ("fedavg", "fedprox") for seed in (0, 1)
        }
        assert {(c["method"], c["partition"], c["lr"]) for c in tuning} == {
            (method, split, lr) for method in ("fedavg", "fedprox") for lr in (0.0001, 0.1)
        }
        assert all(c["validate_share"] == 0.2 for c in tuning)


def test_each_case_has_its_own_choice_and_numbers(cases: dict[str, Comparison]) -> None:
    for found in cases.values():
        assert str(found.chosen("fedavg")) == "lr=0.1"
        assert found.differences["fedprox"]["generic.final"].pairs == 2
    first, second = (found.scores["fedavg"]["generic.final"].values for found in cases.values())
    assert first != second


def test_files_of_all_cases_hold_the_numbers_of_each(cases: dict[str, Comparison], out: Path) -> None:
    whole = json.loads((out / "comparison.json").read_text())["cases"]
    for name, found in cases.items():
        alone = json.loads((out / name / "comparison.json").read_text())
        assert whole[name]["methods"][0]["scores"] == alone["methods"][0]["scores"]
        run = whole[name]["methods"][1]["runs"][0]
        assert (out / run / "summary.json").exists()  # the folders are relative to where the file is
        assert found.plan.out == out / name
    with (out / "comparison.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert {line["case"] for line in lines} == {"alpha=0.1", "alpha=10"}
    with (out / "tuning.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 2 * 2 * 2


def test_overview_has_methods_down_and_cases_across(cases: dict[str, Comparison], out: Path) -> None:
    text = make_document([*cases.values()])
    first = text.chapters[0].tables[0]
    assert first.columns == ("method", "alpha=0.1", "alpha=10")
    mean = cases["alpha=10"].scores["fedprox"]["generic.final"].mean
    assert mean is not None
    assert first.rows[1][2].startswith(f"{100 * mean:.2f} [")
    assert [chapter.heading for chapter in text.chapters] == ["All cases", "alpha=0.1", "alpha=10"]
    assert (out / "comparison.md").read_text() == markdown(text)
    assert "## alpha=10\n" in markdown(text)
    assert "<h2>alpha=10</h2>" in page(text)
    assert r"\caption{alpha=10: Difference to fedavg" in latex(text)


def test_one_value_is_a_plain_setting() -> None:
    (plan,) = make_plans(ComparisonRequest(["fedavg"], sweep={"alpha": [0.3]}))
    assert (plan.case, plan.settings["partition"]) == ("", "dirichlet:0.3")


@pytest.mark.parametrize(
    ("partition", "made"),
    [
        (None, "dirichlet:2"),
        ("dirichlet:0.1", "dirichlet:2"),
        ("longtail:10+dirichlet:0.1", "longtail:10+dirichlet:2"),
    ],
)
def test_alpha_is_the_number_of_the_dirichlet_partition(partition: str | None, made: str) -> None:
    given = {} if partition is None else {"partition": partition}
    assert read_cases({"alpha": [2, 3]}, given)["alpha=2"] == {"partition": made}


def test_two_settings_make_every_combination_and_folders_that_differ() -> None:
    plans = make_plans(ComparisonRequest(["fedavg"], sweep={"data": ["npz:a/b.npz", "npz:a:b.npz", "digits"]}, out="o"))
    assert len({plan.out for plan in plans}) == 3
    plans = make_plans(ComparisonRequest(["fedavg"], sweep={"clients": [4, 8], "rounds": [1, 2]}, out="o"))
    assert [plan.case for plan in plans] == [
        "clients=4, rounds=1", "clients=4, rounds=2", "clients=8, rounds=1", "clients=8, rounds=2",
    ]  # fmt: skip
    names = {plan.cell(plan.rows[0], plan.rows[0].candidates[0], 0).name for plan in plans}
    assert len(names) == 4  # the progress display tells cells apart by their names


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (ComparisonRequest(["feddyn"], sweep={"alpha": [0.1, 0.5]}), r"feddyn\.alpha"),
        (ComparisonRequest(["fedavg"], sweep={"alpha": [0.1, 1]}, settings={"partition": "iid"}), "partition = iid"),
        (ComparisonRequest(["fedavg"], sweep={"alpha": [0.1, 1], "partition": ["iid"]}), "sweep one of them"),
        (ComparisonRequest(["fedavg"], sweep={"alpha": [0.1, "x"]}), "needs a number above 0"),
        (
            ComparisonRequest(["fedavg"], sweep={"clients": [4, 5], "rounds": [1, 2], "alpha": [1, 2]}),
            "one or two settings",
        ),
        (ComparisonRequest(["fedavg"], sweep={"clients": [4, 0]}), "clients = 0"),
        (ComparisonRequest(["fedavg"], sweep={"data": ["a", "b"]}, data=object()), "came from Python"),
    ],
)
def test_mistakes_are_found_before_anything_runs(request_: ComparisonRequest, sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        make_plans(request_)


def test_a_single_comparison_is_not_made_of_several_cases() -> None:
    with pytest.raises(SettingError, match="compare_each"):
        make_plan(ComparisonRequest(["fedavg"], sweep={"alpha": [0.1, 0.5]}))
