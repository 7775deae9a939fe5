"""What the organiser reads of a training: who was away, the last known scores, what privacy is spent, the guide."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedframe.errors import RunError
from fedframe.federation import start, status
from fedframe.runs.session import Session
from fedframe.util.files import read_json
from tests.federation.clinic import make_clinic, write_arrays


def after_round(monkeypatch: pytest.MonkeyPatch, what: Any) -> None:
    """Have something happen after each round."""
    original = Session.finish_round

    def finished(self: Session, record: Any) -> None:
        original(self, record)
        what(record.round)

    monkeypatch.setattr(Session, "finish_round", finished)


@pytest.mark.slow
def test_a_node_that_is_away_is_no_refused_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, transport = make_clinic(tmp_path, monkeypatch)
    after_round(monkeypatch, lambda round: transport.away.add("south"))
    start.start(made)
    summary = read_json(made.runs / "1" / "summary.json")
    assert (summary["updates_refused"], summary["replies_missing"]) == (0, 2)
    said = capsys.readouterr().out
    assert "0 updates refused, 2 replies missing (log.txt says whose and why)." in said
    assert "no longer finite" not in said
    assert said.count("(over 2 of 3 clients: 1 gave no answer)") == 2  # client and personal
    assert "a draw of them" not in said
    assert "fedavg on the nodes' data: " in said


@pytest.mark.slow
def test_status_shows_the_last_known_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = make_clinic(tmp_path, monkeypatch)

    def nobody(folder: Any) -> None:
        raise RunError("not there")

    monkeypatch.setattr(status, "connect_superlink", nobody)
    seen: dict[int, str] = {}

    def look(round: int) -> None:
        seen[round] = status.status_lines(made)[-1]

    after_round(monkeypatch, look)
    start.start(made, test_data=write_arrays(tmp_path / "public.npz", 9), progress=False)
    assert re.fullmatch(r"run 1: 1 of 3 rounds, training \(process \d+\), generic \d+\.\d %", seen[1])
    assert re.search(r", generic \d+\.\d %, client \d+\.\d % \(round 1\)$", seen[2])
    assert re.search(r"finished, generic \d+\.\d %, client \d+\.\d %$", status.status_lines(made)[-1])


@pytest.mark.slow
def test_a_private_run_shows_epsilon_round_by_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("dp_accounting")
    made, _ = make_clinic(tmp_path, monkeypatch, privacy_clip=1.0, privacy_noise=1.0, weighting="uniform")
    result = start.start(made)
    said = capsys.readouterr().out
    for line in result.history:
        assert re.search(rf"round {line['round']}/3 .*  epsilon {re.escape(format(line['epsilon'], '.3g'))}  ", said)


@pytest.mark.slow
def test_the_guide_has_commands_that_a_shell_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "our folder"
    place.mkdir()
    made, _ = make_clinic(place, monkeypatch)
    guide = (made.path / "GUIDE.md").read_text()
    for command in ("serve", "status", "start", "stop"):
        assert f"`fedframe federation {command} '{made.path}'`" in guide
    assert f"`fedframe report '{made.path}/runs/1'`" in guide
    assert all(words in guide for words in ("--check", "--test-data", "serve.sh", "start.sh"))
