"""Progress of long work on data, such as decoding a hundred thousand images: a bar on a terminal, a line elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar

WORTH_SHOWING = 2000  # items: fewer are done in a second or two

Item = TypeVar("Item")


def shown(items: Sequence[Item], what: str) -> Iterator[Item]:
    """The items one by one, with a bar if they are many."""
    if len(items) < WORTH_SHOWING:
        yield from items
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track

        yield from track(items, description=what, console=Console(stderr=True), transient=True)
    else:
        print(f"{what}: {len(items):,}", file=sys.stderr, flush=True)
        yield from items
