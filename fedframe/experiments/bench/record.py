"""The result of a bench as plain values: all that its page needs, and all that another needs to check it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedframe.experiments.bench.rows import BenchRow, pools_data
from fedframe.experiments.bench.scene import Scene
from fedframe.experiments.bench.search import BenchTuned
from fedframe.experiments.compare.files import plain_comparison
from fedframe.experiments.compare.notes import protocol, tests, troubles
from fedframe.experiments.compare.statistics import ComparisonStatistics
from fedframe.experiments.grid.cell import Outcome
from fedframe.experiments.grid.scores import COSTS, heading
from fedframe.util.version import __version__

HOUR = 3600.0


def make_record(
    scene: Scene,
    rows: Sequence[BenchRow],
    comparisons: Sequence[ComparisonStatistics],
    outcomes: Mapping[Path, Outcome],
    left_out: Sequence[str],
    estimated: float | None,
    below: Path,
) -> dict[str, Any]:
    """Everything that came out of a bench; run folders are relative to the folder `below`."""
    spent = [float(outcome.summary["cpu_seconds"]) for outcome in outcomes.values() if outcome.state == "finished"]
    return {
        "scene": scene.name,
        "title": scene.title,
        "command": comparisons[0].command,
        "version": __version__,
        "commit": source_commit(),
        "runs": len(outcomes),
        "cpu_hours": round(sum(spent) / HOUR, 4),
        "cpu_hours_estimated": None if estimated is None else round(estimated / HOUR, 4),
        "settings": scene.settings,
        "cases": scene.cases,
        "tuning": scene.tuning.model_dump(),
        "rate_cut": scene.rate_cut,
        "notes": [*scene.notes, *left_out],
        "rows": [plain_row(each) for each in rows],
        "results": {each.plan.case: plain_case(each, below) for each in comparisons},
    }


def plain_row(row: BenchRow) -> dict[str, Any]:
    """What a row is."""
    main = None if row.main is None else {"setting": str(row.main[0]), "values": list(row.main[1])}
    return {
        "label": row.row.label,
        "method": row.row.method,
        "settings": dict(row.row.settings),
        "why": row.why,
        "control": row.control,
        "bound": pools_data(row.row.method),
        "tuned": row.tuned,
        "like": row.like,
        "main": main,
        "rate_factor": row.rate_factor,
    }


def plain_case(comparison: ComparisonStatistics, below: Path) -> dict[str, Any]:
    """A case as a comparison's plain values, with what the search says in place of a sweep's notes."""
    found = plain_comparison(comparison, below)
    found["accuracies"] = comparison.accuracies
    found["notes"] = [
        *meanings(comparison),
        *tests(comparison),
        *search_notes(comparison),
        *comparison.remarks,
        *troubles(comparison),
    ]
    return found


def meanings(comparison: ComparisonStatistics) -> list[str]:
    """What the columns of a page mean, after the sentence on seeds."""
    shown = [*comparison.accuracies, *COSTS]
    return [protocol(comparison)[0], *(f"{heading(name)}: {comparison.definitions[name]}." for name in shown)]


def search_notes(comparison: ComparisonStatistics) -> list[str]:
    """What a reader has to know of the choices in a case."""
    tuned = comparison.tuned
    if not isinstance(tuned, BenchTuned):
        return []
    found = []
    for label, choice in tuned.choices.items():
        if choice.candidate is None:
            found.append(f"{label}: every rate diverged on the validation data, also the smallest that was added.")
        elif choice.at_end:
            rate = asdict(choice.candidate)["values"][0][1]
            found.append(f"{label}: the best rate, {rate:g}, is at the end of its grid; a better one may lie beyond.")
    return found


def source_commit() -> str | None:
    """The commit of Fedframe's own sources, marked if files were changed since; None outside of a repository."""
    here = Path(__file__).parent
    try:
        asked: dict[str, Any] = {"cwd": here, "capture_output": True, "text": True, "check": True, "timeout": 10}
        commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], **asked).stdout.strip()
        tracked = subprocess.run(["git", "ls-files", "--error-unmatch", "record.py"], **{**asked, "check": False})
        if tracked.returncode:  # an installation that happens to lie in someone else's repository
            return None
        changed = subprocess.run(["git", "status", "--porcelain", "--untracked-files=no", "."], **asked).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}, with changes" if changed else commit
