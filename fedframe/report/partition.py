"""The partition of a data set over clients, as a table in the terminal and as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedframe.data import Source
from fedframe.data.load import read_spec
from fedframe.data.tables import table_columns
from fedframe.jobs.build import make_clients
from fedframe.report.figures.drawing import picture_path, write_figure
from fedframe.report.figures.partition import partition_figure
from fedframe.report.tables import partition_table
from fedframe.settings import check
from fedframe.util.text import plural

IN_PICTURE = 1000  # clients


def show_columns(data: str, label: str | None, client_column: str | None, task: str = "auto") -> None:
    """Print what the columns of a table are and what is doubtful about them; nothing for data that are no table."""
    if not data.startswith(("csv:", "parquet:")):
        return
    columns, said = table_columns(read_spec(data, label=label, client_column=client_column, task=task))
    table = Table("column", "is a", "read as", "missing", "different", "inputs", "examples", box=None, pad_edge=False)
    for each in columns:
        style = "yellow" if each.problem else ""
        examples = escape(", ".join(repr(text[:20]) for text in each.examples))
        counts = (f"{each.missing:,}", f"{each.different:,}", f"{each.inputs:,}")
        table.add_row(escape(each.name), f"{each.kind}{' (?)' if each.problem else ''}", each.read_as or "-", *counts,
                      examples, style=style)  # fmt: skip
    console = Console()
    console.print(table)
    for sentence in said:
        console.print(escape(sentence), highlight=False)
    console.print()


def learned(source: Source) -> str:
    """What is learned; of numbers and labels the table below shows the ranges that they are dealt out by."""
    if source.task == "classification":
        return f"{len(source.classes)} classes"
    kinds = "ranges of it" if source.task == "regression" else "by the rarest label"
    return f"{source.task} of {', '.join(source.outputs[:5])} (the table: {kinds})"


def show_partition(given: dict[str, Any], picture: Path | None) -> None:
    """Load and partition data as a run would, print the table and save the figure."""
    target = picture_path(picture) if picture is not None else None
    settings = check(given)
    federation = make_clients(settings, settings.data)
    source = federation.source
    console = Console()
    tested = len(source.test.y) if source.test is not None else 0
    console.print(
        f"{source.name}: {len(source.train.y)} training and {tested} test samples of shape {source.input_shape}, "
        f"{learned(source)}; {plural(len(federation), 'client')} ({federation.partition})",
        highlight=False,
    )
    dealt, held = len(federation.train.values), len(federation.local_test.values)
    whose = "held out by the clients" if federation.local_test_pool == "train" else "drawn from the test samples"
    console.print(
        f"The table counts the {dealt:,} samples that clients train on; their own test data, {held:,} samples "
        f"{whose}, come on top.",
        highlight=False,
    )
    for note in federation.notes:
        console.print(f"[yellow]{note}", highlight=False)
    table = federation.table(IN_PICTURE).numpy()
    names = federation.names[: len(table)]
    console.print(partition_table(table, source.classes, names, federation.train.sizes().numpy()))
    path = target or Path(f"partition-{source.name.partition(':')[0]}.svg")
    title = f"{source.name}, {federation.partition}, {len(federation)} clients"
    write_figure(partition_figure(table, source.classes, title, names), path)
    console.print(f"Picture: {path}", highlight=False)
