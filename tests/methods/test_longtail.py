"""Long-tailed data from the command to the scores: many, medium and few classes apart."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

import fedframe

LONG_TAIL = "longtail:100+dirichlet:0.5"


def plain_groups(counts: dict[str, int], accuracies: dict[str, float]) -> dict[str, float]:
    """Classes one by one, the most frequent first, until three quarters and 95 % of the samples are passed."""
    found: dict[str, list[float]] = {"many": [], "medium": [], "few": []}
    seen = 0
    for name in sorted(counts, key=lambda each: -counts[each]):
        share = seen / sum(counts.values())
        found["many" if share < 0.75 else "medium" if share < 0.95 else "few"].append(accuracies[name])
        seen += counts[name]
    return {name: fmean(values) for name, values in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "fedloge", "fedetf", "ccvr", "fedrod"])
def test_the_tail_is_scored_apart(method: str, tmp_path: Path) -> None:
    summary = fedframe.run(
        method,
        partition=LONG_TAIL,
        clients=5,
        rounds=3,
        workers=1,
        personal=False,
        out=tmp_path / "run",
        progress=False,
    ).summary
    counts = summary["train_per_class"]
    assert list(counts.values()) == sorted(counts.values(), reverse=True)
    assert max(counts.values()) >= 90 * min(counts.values())
    expected = plain_groups(counts, summary["per_class"])
    assert summary["per_group"] == pytest.approx(expected)
    assert summary["per_group"]["many"] > summary["per_group"]["few"]  # a tail of a few samples is hard


@pytest.mark.slow
def test_closing_lines_tell_groups_of_a_long_tail_only(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    common: dict[str, Any] = {"clients": 5, "rounds": 1, "workers": 1, "personal": False, "progress": True}
    tailed = fedframe.run("fedavg", partition=LONG_TAIL, out=tmp_path / "tail", **common).summary
    assert f"many {100 * tailed['per_group']['many']:.1f} %, medium " in capsys.readouterr().out
    fedframe.run("fedavg", partition="iid", out=tmp_path / "even", **common)
    assert "medium" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_method_without_shared_model_has_no_groups(tmp_path: Path) -> None:
    found = fedframe.run("local", partition=LONG_TAIL, clients=5, rounds=1, workers=1, out=tmp_path, progress=False)
    assert set(found.summary["per_group"].values()) == {None}
