"""The comparison with other frameworks: ratios within a repeat, and a plain word about one that is not installed."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
from pathlib import Path

import psutil
import pytest

from benchmarks.peers import __main__ as peers
from benchmarks.peers.meter import Meter


def test_ratios_are_those_of_a_repeat_and_who_is_absent_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = {"ours": iter([1.0, 2.0, 10.0, 20.0]), "flower": iter([30.0, 200.0])}
    asked: list[tuple[object, ...]] = []

    def measure(python: str, module: str, *arguments: object, most_seconds: float) -> dict[str, float] | str:
        asked.append((python, module, *arguments[3:]))
        if module == "pfl_research":
            return "pfl-research is not installed here"
        return dict.fromkeys(peers.UNITS, next(costs[module]))

    monkeypatch.setattr(peers, "measure", measure)
    monkeypatch.setitem(peers.PAIRS, "pfl_research", ("fedframe, 2 processes", 2))  # so that ours is run only once
    options = argparse.Namespace(rounds=1, repeats=2, pfl_python="other-python", most_seconds=60.0)
    found = peers.compare("D", ["flower"], options, Path("job.npz"))
    assert found["ratios"]["flower / fedframe, 2 processes"]["cpu"] == pytest.approx((30 / 1 + 200 / 10) / 2)
    assert found["ratios"]["flower / fedframe, 2 processes vectorise=auto"]["pss"] == pytest.approx((15 + 10) / 2)
    costs["ours"] = iter([1.0] * 4)
    found = peers.compare("D", ["pfl_research"], options, Path("job.npz"))
    assert found["absent"] == {"pfl_research": "pfl-research is not installed here"}
    assert found["ratios"] == {}
    assert "pfl_research is left out" in capsys.readouterr().err
    assert [python for python, module, *_ in asked if module == "pfl_research"] == ["other-python"]


def test_a_framework_that_does_not_end_is_ended_with_all_that_it_has_started(tmp_path: Path) -> None:
    note = tmp_path / "child"
    stuck = tmp_path / "python"  # stands in for an interpreter: it starts a child and waits for ever
    stuck.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {note}\nwait\n")
    stuck.chmod(0o755)
    found = peers.measure(str(stuck), "flower", "D", most_seconds=2.0)
    assert found == "it had not ended after 2 seconds (--most-seconds)"
    child = int(note.read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


@pytest.mark.skipif(importlib.util.find_spec("pfl") is not None, reason="pfl-research is installed")
def test_pfl_research_says_how_it_is_installed() -> None:
    with pytest.raises(SystemExit, match=r"pfl-research is not installed here.*--pfl-python"):
        importlib.import_module("benchmarks.peers.pfl_research")


def test_meter_counts_from_the_first_round_on(capsys: pytest.CaptureFixture[str]) -> None:
    meter = Meter()
    meter.round()
    assert (meter.wall, meter.cpu) == (0.0, 0.0)
    sum(range(10_000))
    meter.round()
    meter.report()
    result = json.loads(capsys.readouterr().out)
    assert result["rounds"] == 1
    assert result["wall"] > 0
    assert result["pss"] > 1
