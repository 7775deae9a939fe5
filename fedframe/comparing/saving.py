"""A comparison's files, and how it is shown on a terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedframe.comparing.blocks import blocks
from fedframe.comparing.formats import latex, markdown, page
from fedframe.comparing.notes import notes
from fedframe.comparing.result import Comparison
from fedframe.comparing.statistics import Difference
from fedframe.core.files import write_json, write_text

STEM = "comparison"


def save(comparison: Comparison, folder: Path) -> list[Path]:
    """Write all files; run folders in the JSON are relative to it."""
    texts = {
        f"{STEM}.md": markdown(comparison),
        f"{STEM}.csv": comma_separated(score_lines(comparison)),
        f"{STEM}.tex": latex(comparison),
        f"{STEM}.html": page(comparison),
    }
    if comparison.tuned is not None:
        texts["tuning.csv"] = comma_separated(tuning_lines(comparison))
    for name, text in texts.items():
        write_text(folder / name, text)
    write_json(folder / f"{STEM}.json", comparison.plain(folder))
    return [*(folder / name for name in texts), folder / f"{STEM}.json"]


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


def show(comparison: Comparison) -> None:
    """Print the tables: on a terminal as wide as it is, elsewhere as Markdown."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        print(markdown(comparison), end="")
        return
    for block in blocks(comparison):
        grid = Table(title=Text(block.title), title_justify="left", box=None, padding=(0, 2, 0, 0))
        for name in block.columns:
            grid.add_column(Text(name), no_wrap=name in ("method", "score"))
        for row in block.rows:
            grid.add_row(*map(Text, row))
        console.print(grid)
        console.print()
    for text in notes(comparison):
        console.print(text, markup=False, highlight=False)
