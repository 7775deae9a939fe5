"""Commands that make pages and pictures: report, watch, plot."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Optional

import typer

from fedframe.cli.app import app, interruptible
from fedframe.cli.options import ChangedCode

Folders = Annotated[
    list[Path], typer.Argument(help="run folder, several to compare, or a folder of 'fedframe compare'")
]


@contextlib.contextmanager
def note_on_interrupt(text: str) -> Iterator[None]:
    """Add to an interruption what it means here."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.add_note(text)
        raise


@app.command()
def report(
    folders: Folders,
    out: Annotated[Optional[Path], typer.Option(help="page to write (default: report.html in the folder)")] = None,
    embedding: Annotated[
        Optional[str], typer.Option(help="picture of the features: tsne or pca (default: tsne, or what is there)")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="leave out models that were not examined yet")] = False,
    changed_code: ChangedCode = False,
) -> None:
    """Write one HTML page about a run, or about several side by side: scores, curves, clients, classes, cost."""
    with interruptible(), note_on_interrupt("No page was written."):
        from fedframe.report.page.build import write_page

        page = write_page(folders, out, quick=quick, embedding=embedding, changed_code=changed_code, notify=typer.echo)
        typer.echo(f"Page: {page}")


@app.command()
def watch(
    folders: Folders,
    port: Annotated[int, typer.Option(min=0, max=65535, help="port to serve on (0: a free one)")] = 8765,
    host: Annotated[
        str, typer.Option(help="address to serve on; any other address can be reached from other machines")
    ] = "127.0.0.1",
) -> None:
    """Serve the page of a run live in the browser while it trains; Ctrl-C ends it."""
    with interruptible():
        from fedframe.errors import DataError
        from fedframe.report.watch import PageServer, is_loopback

        for folder in folders:
            if folder.is_file():
                raise DataError(f"{folder} is a file; give a run folder, such as runs/fedavg-digits-1.")
            if not folder.exists():
                typer.echo(f"{folder} does not exist yet. The page fills when the run begins.")
        with PageServer(folders, host, port) as server:
            if not is_loopback(host):
                warning = f"Everybody who can reach {host} can see this page, names of clients and classes included."
                typer.secho(warning, fg=typer.colors.YELLOW, err=True)
            with contextlib.suppress(KeyboardInterrupt):
                typer.echo(f"Live at {server.url} (Ctrl-C ends it)")
                server.serve_forever()
            typer.echo("\nThe page is closed. A run that is under way continues.")


@app.command()
def plot(
    folders: Folders,
    what: Annotated[
        str,
        typer.Option(help="curves, partition, confusion, gram, drift, collapse, clients or embedding"),
    ] = "curves",
    out: Annotated[Optional[Path], typer.Option(help="picture to write: .svg, .png or .pdf")] = None,
    smooth: Annotated[int, typer.Option(help="average lines over this many evaluations (curves and collapse)")] = 1,
    changed_code: ChangedCode = False,
) -> None:
    """Draw a figure for a paper, by default accuracy over rounds as an SVG picture in the first run's folder."""
    with interruptible(), note_on_interrupt("No picture was written."):
        from fedframe.report.figures import draw

        picture = draw(folders, what, out, notify=typer.echo, changed_code=changed_code, smoothed=smooth)
        typer.echo(f"Picture: {picture}")
