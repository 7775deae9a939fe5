"""The command line's frame: the program, how its errors read and how it is stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from fedframe.errors import FedframeError
from fedframe.util.version import __version__

app = typer.Typer(
    name="fedframe",
    help="Federated learning on data that disagree: one strong shared model, one strong personal model per client.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def main() -> None:
    """Run a command; an error of ours is one sentence, not a traceback."""
    try:
        app()
    except FedframeError as error:
        if os.environ.get("FEDFRAME_DEBUG"):
            raise
        # The last note says how to go on; those before it may hold a worker's traceback.
        text = "\n".join([str(error), *getattr(error, "__notes__", [])[-1:]])
        typer.secho(text, fg=typer.colors.RED, err=True)
        sys.exit(1)
    except BrokenPipeError:
        # The reader of a pipe (head, less) has seen enough; keep Python from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def show_version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        typer.echo(f"fedframe {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options before a command."""


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """End quietly on Ctrl-C or a polite kill: finished rounds are on disk."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt as stop:
        kept = getattr(stop, "__notes__", ["Nothing was trained yet."])
        typer.secho("\n".join(["", "Stopped.", *kept]), fg=typer.colors.YELLOW, err=True)
        sys.exit(130)
