"""The command line's frame: the program, how its errors read and how it is stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import Annotated, NoReturn, Optional

import typer

from fedframe.cli.hints import HintingGroup
from fedframe.errors import FedframeError
from fedframe.util.version import __version__

TRACEBACK = "--traceback"
ALLOW_CODE = "--allow-code"

app = typer.Typer(
    name="fedframe",
    cls=HintingGroup,
    help="Federated learning on data that disagree: one strong shared model, one strong personal model per client.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def main() -> None:
    """Run a command; an error of ours, or of the user's own code, is one sentence and not a traceback."""
    whole = bool(os.environ.get("FEDFRAME_DEBUG")) or TRACEBACK in sys.argv
    sys.argv = [word for word in sys.argv if word != TRACEBACK]  # it may stand anywhere
    sys.argv = permissions_first(sys.argv)
    try:
        app()
    except FedframeError as error:
        if whole:
            raise
        end(error, str(error))
    except BrokenPipeError:
        # The reader of a pipe (head, less) has seen enough; keep Python from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        from fedframe.util.locate import own_error

        sentence = own_error(error)
        if whole or sentence is None:
            raise
        end(error, f"{sentence} (The whole traceback: {TRACEBACK})")


def permissions_first(words: list[str]) -> list[str]:
    """The words of a command with its `--allow-code PLACE` in front: it may stand anywhere, too."""
    found, rest, left = [], words[:1], iter(words[1:])
    for word in left:
        if word == ALLOW_CODE:
            found += [word, *([place] if (place := next(left, None)) is not None else [])]
        else:
            (found if word.startswith(f"{ALLOW_CODE}=") else rest).append(word)
    return [*rest[:1], *found, *rest[1:]]


def end(error: Exception, text: str) -> NoReturn:
    """End the program with a text and the last note, which says how to go on; those before may hold a traceback."""
    typer.secho("\n".join([text, *getattr(error, "__notes__", [])[-1:]]), fg=typer.colors.RED, err=True)
    sys.exit(1)


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
    traceback: Annotated[
        bool, typer.Option(TRACEBACK, help="Show the full traceback of an error. Works anywhere in a command.")
    ] = False,
    allow: Annotated[
        Optional[list[str]],
        typer.Option(
            ALLOW_CODE,
            help="Allow code that a run folder or a kit names: my_file.py or a module. Works anywhere in a command.",
            metavar="PLACE",
        ),
    ] = None,
) -> None:
    """Options before a command."""
    for place in allow or []:
        from fedframe.util.allowed_code import allow_code

        allow_code(place)


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
