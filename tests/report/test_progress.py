"""What a run prints: scores of every kind that there is, and commands that work on its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedframe
from fedframe.core.evaluation import Scores
from fedframe.core.round_record import RoundRecord
from fedframe.errors import DataError
from fedframe.report.figures.lines import accuracy_data
from fedframe.report.page.runs import open_runs
from fedframe.runs.progress import round_scores, scores_text

BRIEF: dict[str, Any] = {"clients": 3, "rounds": 1, "epochs": 1, "workers": 1}


def test_personal_score_of_a_round_is_shown_where_there_is_one() -> None:
    assert scores_text(Scores(generic=0.5, client=0.25)) == "generic 50.0 %  client 25.0 %"
    assert scores_text(Scores(personal=0.75)) == "personal 75.0 %"
    assert scores_text(Scores()) == ""


def test_scores_that_nodes_send_with_the_next_round_are_shown_with_their_own_round() -> None:
    record = RoundRecord(4, 0.5, 0.1, 3, scores=Scores(generic=0.5), late=Scores(client=0.25))
    assert round_scores(record) == "  generic 50.0 %  client 25.0 % after round 3"
    assert round_scores(RoundRecord(1, 0.5, 0.1, 3, scores=Scores())) == ""


@pytest.mark.slow
@pytest.mark.parametrize(("method", "option"), [("fedavg", ""), ("fedper", " --client 0")])
def test_closing_line_names_a_command_that_works(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, method: str, option: str
) -> None:
    fedframe.run(method, out=tmp_path / "run", progress=True, **BRIEF)
    assert f"INPUT{option}'" in capsys.readouterr().out
    fedframe.Predictor.load(tmp_path / "run", client=0 if option else None)


@pytest.mark.slow
def test_run_without_any_model_that_predicts_says_how_to_get_one(tmp_path: Path) -> None:
    fedframe.run("fedper", out=tmp_path / "run", save_personal=False, progress=False, **BRIEF)
    with pytest.raises(DataError, match=r"Client 0 has no personal model in .*; run it with --save-personal\."):
        fedframe.Predictor.load(tmp_path / "run", client=0)


@pytest.mark.slow
def test_runs_without_a_shared_model_are_drawn_by_their_personal_scores(tmp_path: Path) -> None:
    """Beside runs that have one, the picture says who is not in it."""
    paths = {method: tmp_path / method for method in ("fedavg", "fedper", "local")}
    for method, path in paths.items():
        fedframe.run(method, out=path, personal=False, progress=False, **BRIEF)
    alone = accuracy_data(open_runs([paths["fedper"], paths["local"]]))
    assert alone["title"].startswith("Personal models on digits")
    assert "(personal accuracy)" in alone["caption"]
    mixed = accuracy_data(open_runs([paths["fedavg"], paths["local"]]))
    assert mixed["title"].startswith("Shared and personal models on digits")
    assert "without a generic score: local" in mixed["caption"]
    lines = {panel["key"]: [line["label"] for line in panel["series"]] for panel in mixed["panels"]}
    assert lines == {"generic": ["fedavg"], "client": ["fedavg"], "personal": ["local"]}
