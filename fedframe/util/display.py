"""Progress on a terminal or in a log: what all displays share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

Shown = TypeVar("Shown", bound="ProgressDisplay")


def print_line(text: str) -> None:
    """Print and flush, so that a log file can be followed."""
    print(text, flush=True)


class ProgressDisplay:
    """The base of all displays: a context that is opened before the work and closed after it, however it ends."""

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Prepare what the display needs."""

    def close(self) -> None:
        """Take the display off the terminal."""


def choose(progress: bool, silent: Callable[[], Shown], plain: Callable[[], Shown], live: Callable[[], Shown]) -> Shown:
    """The display that suits where the output goes: live on a terminal, plain lines elsewhere, or nothing."""
    if not progress:
        return silent()
    return live() if sys.stdout.isatty() else plain()


def start_bars(field: str, **options: Any) -> Progress:
    """Progress bars with a description, how many are done of all, and a text; `field` is the text's name in a task."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns: list[Any] = [
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TextColumn(f"{{task.fields[{field}]}}", markup=False),
    ]
    if options.pop("remaining", False):
        columns.append(TimeRemainingColumn(compact=True))
    bars = Progress(*columns, **options)
    bars.start()
    return bars
