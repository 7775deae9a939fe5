"""The files of a comparison: tables, and all values as CSV and JSON."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedframe.errors import DataError
from fedframe.experiments.compare.notes import notes
from fedframe.experiments.compare.statistics import ComparisonStatistics
from fedframe.experiments.compare.tables import make_document, paper_document
from fedframe.experiments.compare.tuning import explain_select
from fedframe.experiments.tables import comma_separated, latex, markdown, page
from fedframe.metrics.statistics import CONFIDENCE, TEST, Difference
from fedframe.util.files import read_json, write_json, write_text

STEM = "comparison"


def save(comparisons: Sequence[ComparisonStatistics], folder: Path) -> list[Path]:
    """Write all files; run folders in the JSON are relative to it."""
    document = make_document(comparisons)
    texts = {
        f"{STEM}.md": markdown(document),
        f"{STEM}.csv": comma_separated(by_case(comparisons, score_lines)),
        f"{STEM}.tex": latex(paper_document(comparisons)),
        f"{STEM}.html": page(document),
    }
    if comparisons[0].tuned is not None:
        texts["tuning.csv"] = comma_separated(by_case(comparisons, tuning_lines))
    for name, content in texts.items():
        write_text(folder / name, content)
    write_json(folder / f"{STEM}.json", plain(comparisons, folder))
    return [*(folder / name for name in texts), folder / f"{STEM}.json"]


def set_aside(folder: Path, command: str) -> Path | None:
    """Move the tables of another comparison in the same folder out of the way; where they are now, if there were."""
    try:
        before = read_json(folder / f"{STEM}.json").get("command")
    except DataError:  # none, or one that cannot be read
        return None
    if before == command:
        return None
    number = next(n for n in itertools.count(1) if not (folder / f"earlier-{n}").exists())
    place = folder / f"earlier-{number}"
    place.mkdir()
    for path in (*sorted(folder.glob(f"{STEM}.*")), folder / "tuning.csv"):
        if path.exists():
            path.rename(place / path.name)
    return place


def plain(comparisons: Sequence[ComparisonStatistics], folder: Path) -> dict[str, Any]:
    """One comparison as plain values, or several by their cases."""
    if len(comparisons) == 1:
        return plain_comparison(comparisons[0], folder)
    cases = {each.plan.case: plain_comparison(each, folder) for each in comparisons}
    return {"command": comparisons[0].command, "cases": cases}


def plain_comparison(comparison: ComparisonStatistics, below: Path) -> dict[str, Any]:
    """A comparison as plain values; run folders are relative to the folder `below`."""
    tuned = comparison.tuned
    tuning = {**tuned.plain(), "definition": explain_select(tuned.tuning.select)} if tuned is not None else None
    return {
        "command": comparison.command,
        "baseline": comparison.baseline,
        "seeds": list(comparison.plan.seeds),
        "confidence": CONFIDENCE,
        "test": TEST,
        "metric": comparison.metric,
        "target": comparison.target,
        "methods": [plain_method(comparison, label, below) for label in comparison.labels],
        "definitions": comparison.definitions,
        "tuning": tuning,
        "notes": notes(comparison),
    }


def plain_method(comparison: ComparisonStatistics, label: str, below: Path) -> dict[str, Any]:
    """A method as plain values."""
    row = comparison.plan.rows[comparison.labels.index(label)]
    outcomes, chosen = comparison.outcomes[label], comparison.chosen(label)
    differences = comparison.differences.get(label, {})
    return {
        "name": row.method,
        "label": label,
        "chosen": {str(address): value for address, value in chosen.values} if chosen else None,
        "runs": [Path(os.path.relpath(outcome.cell.folder, below)).as_posix() for outcome in outcomes],
        "states": [outcome.state for outcome in outcomes],
        "reasons": [outcome.reason for outcome in outcomes],
        "scores": {
            name: {**dataclasses.asdict(each), "values": list(each.values), "count": each.count}
            for name, each in comparison.scores[label].items()
        },
        "difference": {name: dataclasses.asdict(each) for name, each in differences.items()},
    }


def by_case(
    comparisons: Sequence[ComparisonStatistics], lines: Callable[[ComparisonStatistics], Iterator[dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    """The lines of all cases; the case stands in front where there are several."""
    for each in comparisons:
        for line in lines(each):
            yield {"case": each.plan.case, **line} if len(comparisons) > 1 else line


def score_lines(comparison: ComparisonStatistics) -> Iterator[dict[str, Any]]:
    """A line per method and score, accuracies as shares of 1."""
    for row in comparison.plan.rows:
        states = [outcome.state for outcome in comparison.outcomes[row.label]]
        for score, each in comparison.scores[row.label].items():
            difference = comparison.differences.get(row.label, {}).get(score, Difference(0))
            yield {
                "method": row.method,
                "label": row.label,
                "score": score,
                "mean": each.mean,
                "low": each.low,
                "high": each.high,
                "seeds": each.count,
                "seeds_asked": len(comparison.plan.seeds),
                "diverged": states.count("diverged"),
                "failed": states.count("failed"),
                "difference": difference.mean,
                "difference_low": difference.low,
                "difference_high": difference.high,
                "p": difference.p,
                "p_holm": difference.p_holm,
                "pairs": difference.pairs,
            }


def tuning_lines(comparison: ComparisonStatistics) -> Iterator[dict[str, Any]]:
    """A line per candidate and seed."""
    assert comparison.tuned is not None
    for trial in comparison.tuned.trials:
        for seed, value, state in zip(comparison.tuned.tuning.seeds, trial.values, trial.states, strict=True):
            yield {
                "label": trial.row.label,
                "candidate": str(trial.candidate),
                "seed": seed,
                "validation": value,
                "state": state,
                "chosen": trial.candidate == comparison.tuned.chosen(trial.row),
            }
