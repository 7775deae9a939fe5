"""The command that takes a model out of Fedframe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from fedframe.cli.app import app, interruptible


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="run folder")],
    format: Annotated[str, typer.Option(help="onnx, torch (torch.export) or torchscript")] = "onnx",
    client: Annotated[Optional[str], typer.Option(help="a client's own model, by number or name")] = None,
    out: Annotated[Optional[Path], typer.Option(help="folder (default: export in the run's)")] = None,
) -> None:
    """Write a model for use without Fedframe, with a model card and ten lines of Python that load it."""
    with interruptible():
        from fedframe.analysis.export import CARD, LOADER, checked_text
        from fedframe.analysis.export import export as write_model

        made = write_model(folder, format, client, out)
        typer.echo(f"{made.file}: {checked_text(made)}")
        typer.echo(f"{made.folder / LOADER} uses it without Fedframe; {made.folder / CARD} says what it is.")
