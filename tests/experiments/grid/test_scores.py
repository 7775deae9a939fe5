"""Scores of cells by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedframe.errors import SettingError
from fedframe.experiments.grid import Cell, Figure, Outcome, read_score
from fedframe.experiments.grid.scores import check_score, explain, is_accuracy
from fedframe.jobs.gather import gather
from fedframe.metrics.accuracy import accuracy_by_group, class_groups


def finished(folder: Path, **summary: Any) -> Outcome:
    """A cell with this summary and two evaluated rounds."""
    folder.mkdir()
    scores = {
        "generic": {"last": 0.5, "last_five": 0.4, "final": 0.6},
        "personal": {"last": None, "last_five": None, "final": 0.9, "weighted": 0.8},
    }
    (folder / "summary.json").write_text(json.dumps({"scores": scores, **summary}))
    lines = [{"round": 1, "generic": 0.2}, {"round": 2}, {"round": 3, "generic": 0.34}, {"round": 4, "generic": 0.3}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Outcome(Cell("c", gather({}, None), folder), "finished")


def test_scores_are_those_of_the_summary(tmp_path: Path) -> None:
    outcome = finished(tmp_path / "run")
    assert read_score(outcome, "generic.final") == 0.6
    assert read_score(outcome, "generic.last_five") == 0.4
    assert read_score(outcome, "personal.last") is None
    assert read_score(outcome, "personal.weighted") == 0.8
    assert read_score(Outcome(outcome.cell, "diverged", "r"), "generic.final") is None


def test_worst_tenth_of_the_clients_is_a_score(tmp_path: Path) -> None:
    spread = {"client": {"std": 0.1, "worst_tenth": 0.25, "min": 0.2, "max": 0.9}, "personal": None}
    outcome = finished(tmp_path / "run", spread=spread)
    assert read_score(outcome, check_score("client.worst_tenth")) == 0.25
    assert read_score(outcome, check_score("personal.worst_tenth")) is None
    assert is_accuracy("client.worst_tenth")


def test_rounds_are_counted_until_the_goal_is_first_reached(tmp_path: Path) -> None:
    outcome = finished(tmp_path / "run")
    assert read_score(outcome, "rounds_to:0.33") == 3
    assert read_score(outcome, "rounds_to:0.2") == 1
    assert read_score(outcome, "rounds_to:0.9") is None


def test_groups_of_classes_are_scored_by_their_mean(tmp_path: Path) -> None:
    counts = {"a": 5, "b": 80, "c": 15}
    outcome = finished(tmp_path / "run", per_class={"a": 0.1, "b": 0.9, "c": 0.5}, train_per_class=counts)
    assert [read_score(outcome, name) for name in ("many", "medium", "few")] == [0.9, 0.5, 0.1]
    assert read_score(outcome, "few", (1, 2)) == 0.1
    assert accuracy_by_group({"a": None, "b": 0.9, "c": 0.5}, counts)["few"] is None


def test_groups_are_cut_at_shares_of_the_samples_or_at_ranks() -> None:
    assert class_groups([80, 15, 5]) == ["many", "medium", "few"]
    assert class_groups([5, 15, 80]) == ["few", "medium", "many"]
    assert class_groups([25, 25, 25, 25]) == ["many", "many", "many", "medium"]
    assert class_groups([40, 30, 20, 10], (1, 3)) == ["many", "medium", "medium", "few"]


def test_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    outcomes = [finished(tmp_path / str(seed)) for seed in range(2)]
    figure = Figure.of([*outcomes, Outcome(outcomes[0].cell, "failed", "r")], "generic.final")
    assert (figure.mean, figure.spread, figure.values) == (0.6, 0.0, (0.6, 0.6))
    assert Figure(()).mean is None
    assert Figure((0.5,)).spread is None


@pytest.mark.parametrize("name", ["generic.best", "generic", "rounds_to", "rounds_to:2", "rounds_to:x", "all"])
def test_score_that_does_not_exist_is_named(name: str) -> None:
    with pytest.raises(SettingError, match=f"There is no score '{name}'"):
        check_score(name)


@pytest.mark.parametrize("name", ["generic.final", "personal.weighted", "client.last_five", "many", "rounds_to:0.33"])
def test_every_score_is_explained(name: str) -> None:
    assert len(explain(check_score(name))) > 20


def test_seconds_are_those_in_rounds_until_the_goal_is_first_reached(tmp_path: Path) -> None:
    outcome = finished(tmp_path / "run")
    lines = [{"round": r, "seconds": 0.5 * r, "generic": g} for r, g in ((1, 0.2), (2, None), (3, 0.34), (4, 0.5))]
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_score(outcome, "seconds_to:0.33") == 0.5 + 1.0 + 1.5
    assert read_score(outcome, "seconds_to:0.9") is None


def test_costs_and_the_mean_over_classes_are_read_from_the_summary(tmp_path: Path) -> None:
    costs = {"bytes_up": 10, "bytes_down": 20, "bytes_once": 5, "cpu_seconds": 1.5, "seconds": 3.0}
    outcome = finished(tmp_path / "run", per_class={"a": 0.2, "b": None, "c": 0.6}, **costs)
    assert read_score(outcome, "bytes_up") == 10
    assert read_score(outcome, "bytes_down") == 25  # a frozen classifier is received once
    assert read_score(outcome, "bytes_after") == 0  # runs of earlier versions have not counted their stages
    assert read_score(outcome, "cpu_seconds") == 1.5
    assert read_score(outcome, "balanced") == pytest.approx(0.4)
    assert read_score(outcome, "new.final") is None  # no client was kept out
    assert not any(is_accuracy(name) for name in ("bytes_up", "seconds_to:0.5", "rounds_to:0.5"))
    assert is_accuracy("balanced")


def test_bytes_of_stages_count_and_those_of_the_classifier_are_per_client(tmp_path: Path) -> None:
    stages = {
        "server_stage": {
            "bytes_up": 40,
            "bytes_down": 12,
            "bytes_by_part": {
                "ffc": {"up": 40, "down": 0},
                "backbone": {"up": 0, "down": 8},
                "head": {"up": 0, "down": 4},
            },
        },
        "client_stage": {"bytes_up": 3, "bytes_down": 9, "bytes_by_part": {"head": {"up": 0, "down": 9}}},
    }
    rounds = {"bytes_up": 10, "bytes_down": 20, "bytes_by_part": {"head": {"up": 3, "down": 5}, "backbone": {"up": 7}}}
    totals = {"bytes_up_total": 53, "bytes_down_total": 41, "bytes_once": 0}
    outcome = finished(tmp_path / "run", stages=stages, clients=2, **rounds, **totals)
    assert read_score(outcome, "bytes_up") == 53
    assert read_score(outcome, "bytes_down") == 41
    assert read_score(outcome, "bytes_after") == 40 + 12 + 3 + 9
    assert read_score(outcome, "bytes_head") == (3 + 5 + 40 + 4) / 2


@pytest.mark.parametrize(
    "name",
    ["bytes_up", "bytes_after", "bytes_head", "cpu_seconds", "seconds", "seconds_to:0.5", "balanced", "new.final"],
)
def test_costs_are_explained_too(name: str) -> None:
    assert len(explain(check_score(name))) > 20
