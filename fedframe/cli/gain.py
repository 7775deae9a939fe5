"""The command that says what clients gain by joining."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedframe.cli.app import app, interruptible


@app.command()
def gain(
    folder: Annotated[Path, typer.Argument(help="run folder")],
    quiet: Annotated[bool, typer.Option("--quiet", help="show no progress of training alone")] = False,
) -> None:
    """Compare every client alone, with the shared model and with its own: who gains by joining, and who loses."""
    with interruptible():
        from fedframe.experiments.gain import gain as compare_clients
        from fedframe.runs.gain import lines_of

        for line in lines_of(compare_clients(folder, progress=not quiet)):
            typer.echo(line)
