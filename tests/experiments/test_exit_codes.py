"""A command whose runs failed in part ends with an error that names each of them, and with the tables of the rest."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

import fedframe
from fedframe.cli import main
from fedframe.errors import RunError
from tests.helpers import blobs
from tests.own_code import write_own

BAD = """
from dataclasses import dataclass
from typing import ClassVar

from fedframe import Part


@dataclass(frozen=True)
class Bad(Part):
    name: ClassVar[str] = "bad"
    fails: bool = True

    def after_merge(self, server, clients):
        if self.fails:
            raise ValueError("nothing to divide")
"""
TABLE = """
title: One good and one bad method
paper: none
unit: percent
settings: {data: "npz:mine.npz", model: "mlp:4", partition: user, batch: 8, epochs: 1, rounds: 1}
scores: {accuracy: generic.final}
columns: {blobs: {}}
rows:
  - {name: FedAvg, method: fedavg, paper: [1.0]}
  - {name: Bad, method: "bad.py:Bad", paper: [1.0]}
"""
DATA = ["--data", "npz:mine.npz", "--partition", "user", "--model", "mlp:4"]
SMALL = [*DATA, "--rounds", "1", "--batch", "8", "--epochs", "1", "--cores", "1"]


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, with a part that fails, which is the current one."""
    write_own(tmp_path)
    (tmp_path / "bad.py").write_text(BAD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ended(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of a command."""
    monkeypatch.setattr("sys.argv", ["fedframe", *arguments])
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as caught:
            main()
    finally:
        signal.signal(signal.SIGTERM, before)
    return int(caught.value.code or 0)


@pytest.mark.slow
def test_compare_fails_if_a_run_did_and_has_the_table_of_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", "fedavg", "bad.py:Bad", "--seeds", "2", *SMALL, "--out", "o"]
    assert ended(monkeypatch, *command) == 1
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert lines[0].startswith("2 of 4 runs failed; the tables have the others, and the same command tries these again")
    assert len(lines) == 3
    for seed, line in enumerate(lines[1:]):
        assert f"bad.py:Bad, seed {seed}: Round 1" in line
        assert "ValueError: nothing to divide" in line
    found = json.loads(Path("o/comparison.json").read_text())["methods"]
    assert [method["states"] for method in found] == [["finished"] * 2, ["failed"] * 2]
    assert "Saved: o/comparison.md" in said.out
    Path("bad.py").write_text(BAD.replace("fails: bool = True", "fails: bool = False"))
    assert ended(monkeypatch, *command) == 0


@pytest.mark.slow
def test_sweep_goes_on_with_the_methods_whose_candidates_could_be_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = ["bad.py:Bad?fails=[true,false]&label=half", "fedavg?lr=[0.05,0.1]"]
    assert ended(monkeypatch, "compare", *methods, "--seeds", "1", *SMALL, "--out", "o") == 1
    said = capsys.readouterr()
    assert said.err.startswith("1 of 5 runs failed;")
    assert "tuning half bad.fails=True, seed 0: Round 1" in said.err
    text = Path("o/comparison.md").read_text()
    assert "| half | failed in tuning |" in text
    assert "half: nothing was chosen" in text
    assert "diverged" not in text
    assert [len(method["runs"]) for method in json.loads(Path("o/comparison.json").read_text())["methods"]] == [0, 1]


@pytest.mark.slow
def test_cases_of_a_sweep_count_as_well(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--sweep", "rounds=1,2", "--seeds", "1", *SMALL, "--out", "o", "--quiet"]
    assert ended(monkeypatch, "compare", "fedavg", "bad.py:Bad", *asked) == 1
    said = capsys.readouterr()
    assert said.err.startswith("2 of 4 runs failed;")
    assert [case in said.err for case in ("rounds=1", "rounds=2")] == [True, True]
    assert not said.out
    assert Path("o/comparison.md").exists()


@pytest.mark.slow
def test_diverged_run_is_an_outcome_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ended(monkeypatch, "compare", "fedavg", "fedavg?lr=1.0e+30", "--seeds", "1", *SMALL, "--out", "o") == 0
    assert "1 diverged" in Path("o/comparison.md").read_text()


@pytest.mark.slow
def test_paper_fails_if_a_cell_did(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Path("table.yaml").write_text(TABLE)
    assert ended(monkeypatch, "paper", "table.yaml", "--out", "o", "--cores", "1", "--data-dir", ".") == 1
    said = capsys.readouterr()
    assert said.err.splitlines()[0].startswith("1 of 2 runs failed;")
    assert "Bad, blobs: Round 1" in said.err.splitlines()[1]
    assert list(Path("o").glob("*.md"))


@pytest.mark.slow
def test_python_returns_what_there_is_and_refuses_only_if_there_is_nothing() -> None:
    asked: dict[str, Any] = {
        "seeds": 1,
        "data": blobs(),
        "rounds": 1,
        "batch": 8,
        "epochs": 1,
        "progress": False,
        "cores": 1,
    }
    found = fedframe.compare(["fedavg", "bad.py:Bad"], out="o", **asked)
    assert [outcome.cell.settings.method.endswith("bad.py:Bad") for outcome in found.failed] == [True]
    with pytest.raises(RunError, match=r"Not one of 1 run could be made; .*\n  bad\.py:Bad, seed 0: Round 1"):
        fedframe.compare(["bad.py:Bad"], out="p", **asked)
