"""The command that measures: what a finished run's models are like."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from fedframe.cli.app import app, interruptible
from fedframe.cli.options import ChangedCode


@app.command()
def measure(
    folder: Annotated[Path, typer.Argument(help="run folder")],
    samples: Annotated[int, typer.Option(help="largest number of samples whose features are examined")] = 2000,
    seed: Annotated[int, typer.Option(help="draws them")] = 0,
    embedding: Annotated[str, typer.Option(help="picture of the features: tsne or pca")] = "tsne",
    again: Annotated[
        bool, typer.Option("--again", help="examine again, even if there is an examination already")
    ] = False,
    changed_code: ChangedCode = False,
) -> None:
    """Examine a finished run's models: accuracy, collapse, drift, cost, each with a sentence on how to read it."""
    with interruptible():
        from fedframe.analysis import examine
        from fedframe.analysis.summary_text import summary_sections
        from fedframe.runs.folder import EXAMINATION, RunFolder
        from fedframe.runs.round_files import SUMMARY

        found = examine(folder, samples=samples, seed=seed, embedding=embedding, again=again, changed_code=changed_code)
        summary = RunFolder(folder).read(SUMMARY) if (folder / SUMMARY).exists() else {}
        margin = " " * 29
        width = min(120, max(80, shutil.get_terminal_size().columns))
        for heading, lines in summary_sections(found, summary, RunFolder(folder).metrics()):
            typer.secho(heading, bold=True)
            for name, value, reading in lines:
                typer.echo(textwrap.fill(value, width, initial_indent=f"  {name:<27}", subsequent_indent=margin))
                text = textwrap.fill(reading, width, initial_indent=margin, subsequent_indent=margin)
                typer.secho(text, dim=True)
        typer.echo(f"Everything, with matrices and curves: {folder / EXAMINATION}")
