"""A filled table as a document, and its files: Markdown, CSV and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedframe.experiments.papers.cells import Choice
from fedframe.experiments.papers.result import Entry, FilledTable
from fedframe.experiments.tables import DASH, Chapter, Document, Table, comma_separated, markdown
from fedframe.util.files import write_json, write_text

PLAIN = 1.0  # the factor of numbers that have a unit of their own


def number(value: float | None, factor: float, sign: bool = False) -> str:
    """A value times a factor: 0.8312 as 83.1 with 100; without a factor four digits; a dash for what is not there."""
    if value is None:
        return DASH
    shown = factor * value
    digits = ".1f" if factor != PLAIN else ".4g"
    return f"{shown:{'+' if sign else ''}{digits}}"


def cell_text(entry: Entry, factor: float) -> str:
    """Ours (the paper's, difference)."""
    ours = number(entry.ours.mean, factor) if entry.ours.values else entry.remark
    if entry.ours.spread is not None:
        ours += f" ± {number(entry.ours.spread, factor)}"
    if entry.printed is None:
        return f"{ours} ({DASH})"
    difference = f", {number(entry.difference, factor, sign=True)}" if entry.difference is not None else ""
    return f"{ours} ({number(entry.printed, factor)}{difference})"


def make_document(result: FilledTable) -> Document:
    """The filled table: a table of texts per score; a table with a single column has its scores side by side."""
    scores, columns = [*result.table.scores], result.columns
    if len(columns) == 1:
        shown = {columns[0]: [(columns[0], score, score) for score in scores]}
    else:
        shown = {score: [(column, score, column) for column in columns] for score in scores}
    tables = [
        Table(
            title,
            ("", *(name for _, _, name in placed_cells)),
            tuple(
                (
                    row,
                    *(
                        cell_text(result.entry(row, column, score), result.table.shown_factor)
                        for column, score, _ in placed_cells
                    ),
                )
                for row in result.rows
            ),
        )
        for title, placed_cells in shown.items()
    ]
    title = f"{result.table.name}: {result.table.title}"
    return Document(title, f"{result.table.paper}.", [Chapter("", tables, closing(result))], is_command=False)


def closing(result: FilledTable) -> list[str]:
    """What a reader of the numbers has to know."""
    units = {"count": ", in rounds", "megabytes": ", in megabytes", "plain": ""}
    scores = [f"{name}: {meaning}." for name, meaning in result.meanings.items()]
    unit = units.get(result.table.unit, ", in percent, difference in points")
    legend = f"Ours (the paper's, ours minus the paper's){unit}."
    return [result.size, legend, *scores, *result.notes]


def number_lines(result: FilledTable) -> Iterator[dict[str, Any]]:
    """A line per number for CSV, accuracies as shares of 1."""
    for entry in result.entries:
        yield {
            "row": entry.row,
            "column": entry.column,
            "score": entry.score,
            "ours": entry.ours.mean,
            "deviation": entry.ours.spread,
            "seeds": len(entry.ours.values),
            "paper": entry.printed,
            "difference": entry.difference,
            "remark": entry.remark,
        }


def file_stem(name: str, choice: Choice) -> str:
    """How the names of the files begin."""
    stem = f"{name}-tuned" if choice.tune else name
    return stem if choice.scale.share == 1 else f"{stem}-scale-{choice.scale.share:g}"


def save(result: FilledTable) -> list[Path]:
    """Write the table's files; their names tell the scale, and whether rates were chosen."""
    stem = file_stem(result.table.name, result.choice)
    paths = [result.choice.out / f"{stem}.{kind}" for kind in ("md", "csv", "json")]
    write_text(paths[0], markdown(make_document(result)))
    write_text(paths[1], comma_separated(number_lines(result)))
    write_json(paths[2], result.plain())
    return paths
