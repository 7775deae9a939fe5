"""A comparison's files, and how it is shown on a terminal."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedframe.errors import DataError
from fedframe.experiments.compare.document import document
from fedframe.experiments.compare.formats import latex, markdown, page
from fedframe.experiments.compare.result import Comparison
from fedframe.metrics.statistics import Difference
from fedframe.util.files import read_json, write_json, write_text

STEM = "comparison"


def save(comparisons: Sequence[Comparison], folder: Path) -> list[Path]:
    """Write all files; run folders in the JSON are relative to it."""
    text = document(comparisons)
    texts = {
        f"{STEM}.md": markdown(text),
        f"{STEM}.csv": comma_separated(by_case(comparisons, score_lines)),
        f"{STEM}.tex": latex(text),
        f"{STEM}.html": page(text),
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


def plain(comparisons: Sequence[Comparison], folder: Path) -> dict[str, Any]:
    """One comparison as plain values, or several by their cases."""
    if len(comparisons) == 1:
        return comparisons[0].plain(folder)
    return {"command": comparisons[0].command, "cases": {each.plan.case: each.plain(folder) for each in comparisons}}


def by_case(
    comparisons: Sequence[Comparison], lines: Callable[[Comparison], Iterator[dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    """The lines of all cases; the case stands in front where there are several."""
    for each in comparisons:
        for line in lines(each):
            yield {"case": each.plan.case, **line} if len(comparisons) > 1 else line


def comma_separated(lines: Iterable[dict[str, Any]]) -> str:
    """Lines with the same names as CSV; what is not there is empty."""
    text = io.StringIO()
    rows = list(lines)
    writer = csv.DictWriter(text, [*rows[0]] if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def score_lines(comparison: Comparison) -> Iterator[dict[str, Any]]:
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


def tuning_lines(comparison: Comparison) -> Iterator[dict[str, Any]]:
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


def show(comparisons: Sequence[Comparison]) -> None:
    """Print the tables: on a terminal as wide as it is, elsewhere as Markdown."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    text = document(comparisons)
    if not console.is_terminal:
        print(markdown(text), end="")
        return
    for chapter in text.chapters:
        if chapter.heading:
            console.rule(Text(chapter.heading), align="left")
        for block in chapter.blocks:
            grid = Table(title=Text(block.title), title_justify="left", box=None, padding=(0, 2, 0, 0))
            for name in block.columns:
                grid.add_column(Text(name), no_wrap=name in ("method", "score"))
            for row in block.rows:
                grid.add_row(*map(Text, row))
            console.print(grid)
            console.print()
        for note in chapter.notes:
            console.print(note, markup=False, highlight=False)
