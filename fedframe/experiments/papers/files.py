"""A filled table as Markdown, CSV and JSON, and on the terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedframe.experiments.papers.result import Entry, Result
from fedframe.util.files import write_json, write_text

DASH = "–"  # noqa: RUF001


def number(value: float | None, counts: bool, sign: bool = False) -> str:
    """0.8312 as 83.1; a count as it is; a dash for what is not there."""
    if value is None:
        return DASH
    shown = value if counts else 100 * value
    return f"{shown:+.1f}" if sign else f"{shown:.1f}"


def cell_text(entry: Entry, counts: bool) -> str:
    """Ours (the paper's, difference)."""
    ours = number(entry.ours.mean, counts) if entry.ours.values else entry.remark
    if entry.ours.spread is not None:
        ours += f" ± {number(entry.ours.spread, counts)}"
    if entry.printed is None:
        return f"{ours} ({DASH})"
    difference = f", {number(entry.difference, counts, sign=True)}" if entry.difference is not None else ""
    return f"{ours} ({number(entry.printed, counts)}{difference})"


def blocks(result: Result) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Tables to print: a heading, the names of the columns, and the lines with their names in front.

    One table per score; a table with a single column shows its scores side by side instead.
    """
    scores, columns = [*result.table.scores], result.columns
    if len(columns) == 1:
        lines = [
            [row, *(cell_text(result.entry(row, columns[0], score), result.counts(score)) for score in scores)]
            for row in result.rows
        ]
        yield columns[0], scores, lines
        return
    for score in scores:
        lines = [
            [row, *(cell_text(result.entry(row, column, score), result.counts(score)) for column in columns)]
            for row in result.rows
        ]
        yield score, columns, lines


def closing(result: Result) -> list[str]:
    """What a reader of the numbers has to know."""
    unit = "rounds" if result.table.unit == "count" else "percent, difference in points"
    scores = [f"{name}: {meaning}." for name, meaning in result.meanings.items()]
    legend = f"Ours (the paper's, ours minus the paper's), in {unit}."
    return [result.size, legend, *scores, *result.table.notes, *result.missing, *result.failures]


def markdown(result: Result) -> str:
    """The table as Markdown."""
    lines = [f"# {result.table.name}: {result.table.title}", "", f"{result.table.paper}.", ""]
    for heading, columns, rows in blocks(result):
        lines += [f"## {heading}", "", "| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
        lines += ["| " + " | ".join(row) + " |" for row in rows]
        lines.append("")
    lines += [f"- {text}" for text in closing(result)]
    return "\n".join(lines) + "\n"


def comma_separated(result: Result) -> str:
    """A line per number, accuracies as shares of 1."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "column", "score", "ours", "deviation", "seeds", "paper", "difference", "remark"])
    for entry in result.entries:
        figures = [entry.ours.mean, entry.ours.spread, len(entry.ours.values), entry.printed, entry.difference]
        writer.writerow([entry.row, entry.column, entry.score, *figures, entry.remark])
    return text.getvalue()


def save(result: Result) -> list[Path]:
    """Write the table's files; their names tell the scale."""
    scale = result.choice.scale.share
    stem = result.table.name if scale == 1 else f"{result.table.name}-scale-{scale:g}"
    paths = [result.choice.out / f"{stem}.{kind}" for kind in ("md", "csv", "json")]
    write_text(paths[0], markdown(result))
    write_text(paths[1], comma_separated(result))
    write_json(paths[2], result.plain())
    return paths


def show(result: Result) -> None:
    """Print the table: on a terminal as wide as it is, elsewhere as Markdown."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        print(markdown(result), end="")
        return
    for heading, columns, rows in blocks(result):
        for shown in pieces(columns, rows, console.width):
            grid = Table(title=f"{result.table.name}: {heading}", title_justify="left", box=None, padding=(0, 2, 0, 0))
            for name in ["", *(columns[i] for i in shown)]:
                grid.add_column(name, no_wrap=True)
            for row in rows:
                grid.add_row(row[0], *(row[i + 1] for i in shown))
            console.print(grid)
            console.print()
    for text in closing(result):
        console.print(text, markup=False, highlight=False)


def pieces(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """The columns in groups that fit the width, each group behind the rows' names."""
    widths = [2 + max(map(len, texts)) for texts in zip(["", *columns], *rows, strict=True)]
    groups: list[list[int]] = [[]]
    room = width - widths[0]
    for i, needed in enumerate(widths[1:]):
        if groups[-1] and needed > room:
            groups.append([])
            room = width - widths[0]
        groups[-1].append(i)
        room -= needed
    return groups
