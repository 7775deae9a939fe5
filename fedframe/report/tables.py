"""The partition as a terminal table: size and class counts of the first clients, as many as fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # rich is loaded when something is printed, not before
    from rich.console import Console, ConsoleOptions, RenderResult

Counts = npt.NDArray[Any]

MOST_CLIENTS, MOST_CLASSES, LONGEST_NAME = 20, 20, 20


@dataclass(frozen=True)
class _Fit:
    """The width of a table: gap between columns, longest heading, length of the size bars."""

    gap: int
    heading: int
    bar: int


# From wide to narrow: the first that shows all classes is used, or the last.
FITS = (_Fit(2, 10, 10), _Fit(1, 8, 6), _Fit(1, 4, 0))


@dataclass(frozen=True)
class _Column:
    heading: str
    cells: list[str]
    total: str
    left: bool = False

    def width(self) -> int:
        return max(map(len, (self.heading, self.total, *self.cells)))


class PartitionTable:
    """A table that rich can print, fitted to the width of the terminal it is printed on."""

    def __init__(self, table: Counts, classes: Sequence[str], names: Sequence[str], sizes: Counts) -> None:
        self.table, self.classes, self.names, self.sizes = table, classes, names, sizes

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table
        from rich.text import Text

        wanted = min(len(self.classes), MOST_CLASSES)
        for fit in FITS:
            left, classes = self.left_columns(fit), self.class_columns(fit)
            room = options.max_width - sum(column.width() + fit.gap for column in left)
            ends = accumulate(column.width() + fit.gap for column in classes)
            shown = sum(end - fit.gap <= room for end in ends)
            if shown == wanted:
                break
        columns = left + classes[:shown]
        clients = min(len(self.table), MOST_CLIENTS)
        grid = Table(box=None, padding=(0, fit.gap, 0, 0), pad_edge=False, show_footer=clients < len(self.sizes))
        for column in columns:
            text = Text(column.heading, style="bold")
            grid.add_column(text, column.total, justify="left" if column.left else "right", no_wrap=True)
        for i in range(clients):
            texts = [column.cells[i] for column in columns]
            grid.add_row(*(Text(text, "dim" if text[:1] in ("·", "█", "▏") else "") for text in texts))
        yield grid
        yield Text(self.summary(clients, shown), style="dim")

    def left_columns(self, fit: _Fit) -> list[_Column]:
        """Name, size and number of classes of each client."""
        rows = range(min(len(self.table), MOST_CLIENTS))
        most = max(1, int(self.sizes.max()))
        bars = ["█" * round(fit.bar * n / most) or "▏"[: int(n)] for n in self.sizes[: len(rows)].tolist()]
        return [
            _Column("client", [_cut(self.names[i], LONGEST_NAME) for i in rows], "all", left=True),
            _Column("samples", [f"{self.sizes[i]:,}" for i in rows], f"{self.sizes.sum():,}"),
            *([_Column("", bars, "", left=True)] if fit.bar else []),
            _Column("classes", [str((self.table[i] > 0).sum()) for i in rows], ""),
        ]

    def class_columns(self, fit: _Fit) -> list[_Column]:
        """Samples of the first classes at each client."""
        known = len(self.table) == len(self.sizes)  # otherwise the table does not hold all clients
        headings = [_cut(str(name), fit.heading) for name in self.classes[:MOST_CLASSES]]
        if len(set(headings)) < len(headings):  # numbers, where short names are not unique
            headings = [str(j) for j in range(len(headings))]
        columns = []
        for j, heading in enumerate(headings):
            counts = self.table[:, j]
            cells = [str(count) if count > 0 else "·" for count in counts[:MOST_CLIENTS].tolist()]
            columns.append(_Column(heading, cells, short(counts.sum()) if known else ""))
        return columns

    def summary(self, clients: int, classes: int) -> str:
        """What the sizes are, and what was left out."""
        low, middle, high = (int(f(self.sizes)) for f in (np.min, np.median, np.max))
        text = f"{low:,} to {high:,} samples a client, median {middle:,}." if len(self.sizes) > 1 else ""
        left_out = [
            f"{shown:,} of {count:,} {what}"
            for shown, count, what in (
                (clients, len(self.sizes), "clients"),
                (classes, len(self.classes), "classes"),
            )
            if shown < count
        ]
        return text + (f" Shown: the first {' and '.join(left_out)}." if left_out else "")


def partition_table(
    table: Counts, classes: Sequence[str], names: Sequence[str] | None = None, sizes: Counts | None = None
) -> PartitionTable:
    """Give a table for `rich.print` of how many samples of each class the clients hold.

    Parameters
    ----------
    table
        Counts of the first clients or of all, (clients, classes).
    classes
        A name per class.
    names
        A name per client; None numbers them from 0.
    sizes
        Samples of every client, also of those beyond the table; None takes the sums of the table.
    """
    table = np.asarray(table)
    if table.ndim != 2 or table.shape[1] != len(classes) or 0 in table.shape:
        raise ValueError(f"a table of shape {table.shape} does not fit {len(classes)} classes")
    names = [str(i) for i in range(len(table))] if names is None else names
    return PartitionTable(table, classes, names, table.sum(1) if sizes is None else np.asarray(sizes))


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def short(count: float) -> str:
    """Write a count in at most four or five characters: 950, 1.2k, 34k, 5.1M."""
    for limit, factor, unit in ((1e6, 1e6, "M"), (1e3, 1e3, "k")):
        if count >= limit * (0.9995 if unit == "M" else 1):
            value = count / factor
            return f"{value:.1f}".removesuffix(".0") + unit if value < 9.95 else f"{value:.0f}{unit}"
    return f"{count:.0f}"
