"""Who has what, as a picture: clients across, classes down, their sizes as bars at the sides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedframe.report.canvas import Canvas, num, shorten, width_of, wrap
from fedframe.report.scale import short

Counts = npt.NDArray[Any]  # (clients, classes)

MOST_COLUMNS, MOST_ROWS, MOST_CELLS = 240, 120, 16_000
LEVELS = 10  # steps of colour, evenly spaced in the square root of the count, so that small counts show
ON_FROM = 7  # level from which the other text colour has the better contrast
PAD, BARS, SIDE = 20, 46, 84  # pixels: rim, height of the client bars, width of the class bars


def partition_picture(table: Counts, classes: Sequence[str], title: str, names: Sequence[str] | None = None) -> str:
    """Draw how many samples of each class every client holds, as an SVG text.

    Parameters
    ----------
    table
        Counts, (clients, classes).
    classes
        A name per class.
    title
        The headline.
    names
        A name per client; None numbers them from 0.
    """
    table = np.asarray(table)
    if table.ndim != 2 or table.shape[1] != len(classes) or 0 in table.shape:
        raise ValueError(f"a table of shape {table.shape} does not fit {len(classes)} classes")
    return _Picture(table, classes, title, names).draw()


class _Picture:
    """One picture's measures, and the strokes that use them."""

    def __init__(self, table: Counts, classes: Sequence[str], title: str, names: Sequence[str] | None) -> None:
        self.table, self.canvas = table, Canvas()
        self.grid = _join(table)
        self.rows: int = self.grid.shape[1]
        # Mixing neighbouring clients would hide how different they are: many clients are thinned out instead.
        stride = math.ceil(len(table) / min(MOST_COLUMNS, MOST_CELLS // self.rows))
        self.grid = self.grid[::stride]
        self.columns = len(self.grid)
        texts = [str(i) if names is None else names[i] for i in range(0, len(table), stride)]
        self.cell_w: int
        self.cell_h: int
        self.cell_w, self.cell_h = max(3, min(56, 720 // self.columns)), max(6, min(24, 480 // self.rows))
        longest = max(width_of(text, 11) for text in texts)
        fits = longest + 6 <= self.cell_w
        self.turned = not fits and not all(text.isdigit() for text in texts)
        self.client_texts = [shorten(text, 110, 11) for text in texts] if self.turned else texts
        self.client_step = _step((13 if self.turned else 1 if fits else longest + 10) / self.cell_w)
        self.class_step = _step(13 / self.cell_h)
        self.class_texts = [shorten(str(name), 130, 11) for name in classes[:: _joined(table)]]
        self.left = PAD + max(66, 8 + max(width_of(text, 11) for text in self.class_texts))
        self.right = self.left + self.columns * self.cell_w
        self.width = max(self.right + 14 + SIDE + 48, 520)
        self.subtitle = wrap(_summary(table, stride), self.width - 2 * PAD, 12)
        self.title = title
        self.headline = wrap(title, self.width - 2 * PAD, 16)
        self.top = 18 + 21 * len(self.headline) + 17 * len(self.subtitle) + 28 + BARS
        self.bottom = self.top + self.rows * self.cell_h

    def draw(self) -> str:
        for i, line in enumerate(self.headline):
            self.canvas.text(PAD, 34 + 21 * i, line, size=16, bold=True)
        for i, line in enumerate(self.subtitle):
            self.canvas.text(PAD, 34 + 21 * (len(self.headline) - 1) + 20 + 17 * i, line, "dim")
        self.client_bars()
        self.cells()
        self.class_bars()
        below = self.client_labels()
        self.legend(below + 26)
        return self.canvas.render(self.width, below + 46, self.title, " ".join(self.subtitle))

    def client_bars(self) -> None:
        sizes, base = self.grid.sum(1), self.top - 14
        most = max(1, int(sizes.max()))
        gap = 1 if self.cell_w > 4 else 0
        heights = [num(BARS * size / most) for size in sizes.tolist()]
        path = "".join(
            f"M{num(self.left + i * self.cell_w)} {num(base)}v-{height}h{self.cell_w - gap}v{height}z"
            for i, height in enumerate(heights)
        )
        self.canvas.line(self.left, base - BARS, self.right, base - BARS, "grid")
        self.canvas.add(f'<path d="{path}" class="ff-bar"/>')
        self.canvas.text(self.right + 6, base - BARS + 4, f"{most:,}", "dim", 10)
        self.canvas.text(self.left - 8, base - BARS / 2 - 4, "samples", "dim", 11, "end")
        self.canvas.text(self.left - 8, base - BARS / 2 + 10, "per client", "dim", 11, "end")

    def cells(self) -> None:
        """Draw each cell as a thick stroke on a stretched grid: seven characters, not a whole element."""
        most = max(1, int(self.grid.max()))
        levels = np.ceil(np.sqrt(self.grid / most) * LEVELS).astype(int)  # 0 is empty
        gap_x, gap_y = (2 if self.cell_w >= 14 else int(self.cell_w > 4)), (2 if self.cell_h >= 14 else 1)
        box = f"M0 0H{self.columns}V{self.rows}H0z"
        place = f"translate({num(self.left)} {num(self.top)}) scale({self.cell_w} {self.cell_h})"
        self.canvas.add(f'<g transform="{place}"><path d="{box}" class="ff-hue" opacity=".06"/>')
        shift = f'transform="translate(0 .5)" stroke-width="{num(1 - gap_y / self.cell_h)}"'
        for level in range(1, LEVELS + 1):
            path = "".join(_strokes(levels == level, num(1 - gap_x / self.cell_w), merge=gap_x == 0))
            if path:
                self.canvas.add(f'<path {shift} d="{path}" class="ff-run" stroke-opacity="{num(_opacity(level))}"/>')
        self.canvas.add("</g>")
        self.numbers(levels)

    def numbers(self, levels: npt.NDArray[np.int_]) -> None:
        """Write the counts into the cells where they fit."""
        room = self.cell_w - 4
        write = next((w for w in (_whole, short) if max(width_of(w(n), 10) for n in self.grid.flat) <= room), None)
        if self.cell_h < 14 or write is None:
            return
        for kind, here in (("ink", levels < ON_FROM), ("on", levels >= ON_FROM)):
            self.canvas.add(f'<g class="ff-{kind}" font-size="10" text-anchor="middle">')
            for i, j in np.argwhere(here & (levels > 0)).tolist():
                x, y = self.left + (i + 0.5) * self.cell_w - 1, self.top + (j + 0.5) * self.cell_h + 3.5
                self.canvas.add(f'<text x="{num(x)}" y="{num(y)}">{write(self.grid[i, j])}</text>')
            self.canvas.add("</g>")

    def class_bars(self) -> None:
        totals, start = self.table_totals(), self.right + 14
        most = max(1, int(max(totals)))
        thick = self.cell_h - (2 if self.cell_h >= 14 else 1)
        self.canvas.text(self.left - 8, self.top - 5, "class", "dim", 11, "end")
        self.canvas.text(start, self.top - 5, "per class", "dim", 11)
        path = ""
        for j, total in enumerate(totals):
            y = self.top + j * self.cell_h
            if total > 0:
                edge = num(y + (self.cell_h - thick) / 2)
                path += f"M{num(start)} {edge}h{num(SIDE * total / most)}v{thick}H{num(start)}z"
            if j % self.class_step == 0:
                middle = y + self.cell_h / 2 + 4
                self.canvas.text(self.left - 8, middle, self.class_texts[j], size=11, anchor="end")
                self.canvas.text(start + SIDE * total / most + 5, middle, short(total), "dim", 10)
        self.canvas.add(f'<path d="{path}" class="ff-bar"/>')

    def table_totals(self) -> list[int]:
        """Samples per class over all clients, shown or not."""
        totals: list[int] = _join(self.table).sum(0).tolist()
        return totals

    def client_labels(self) -> float:
        y: float = self.bottom + (12 if self.turned else 16)
        for i in range(0, self.columns, self.client_step):
            x = self.left + (i + 0.5) * self.cell_w
            anchor, turn = ("end", -45) if self.turned else ("middle", 0)
            self.canvas.text(x + (3 if self.turned else 0), y, self.client_texts[i], size=11, anchor=anchor, turn=turn)
        self.canvas.text(self.right + 14, self.bottom + 16, "client", "dim", 11)
        longest = max(width_of(text, 11) for text in self.client_texts)
        return y + 0.71 * longest if self.turned else y

    def legend(self, y: float) -> None:
        most = int(self.grid.max())
        for level in range(1, LEVELS + 1):
            shade = f' opacity="{num(_opacity(level))}"'
            self.canvas.rect(PAD + 14 * (level - 1), y - 10, 14, 12, "hue", shade)
        words = f"1 to {most:,} samples in a cell (square-root scale)"
        self.canvas.text(PAD + 14 * LEVELS + 8, y, words, "dim", 11)


def _join(table: Counts) -> Counts:
    """Add up neighbouring classes when there are more than fit below each other."""
    joined: Counts = np.add.reduceat(table, range(0, table.shape[1], _joined(table)), axis=1)
    return joined


def _joined(table: Counts) -> int:
    return math.ceil(int(table.shape[1]) / MOST_ROWS)


def _summary(table: Counts, stride: int) -> str:
    sizes, held = table.sum(1), (table > 0).sum(1)
    text = (
        f"{len(table):,} clients, {table.shape[1]:,} classes, {int(sizes.sum()):,} samples. A client has "
        f"{_span(sizes)} samples (median {int(np.median(sizes)):,}) of {_span(held)} classes."
    )
    if stride > 1:
        text += f" One client in {stride} is drawn."
    if _joined(table) > 1:
        text += f" Each row adds up {_joined(table)} classes."
    return text


def _whole(count: float) -> str:
    return f"{count:,.0f}"


def _span(values: npt.NDArray[Any]) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _strokes(here: npt.NDArray[np.bool_], length: str, merge: bool) -> list[str]:
    """Path commands for the marked cells, (columns, rows); neighbours are joined where there is no gap."""
    if not merge:
        return [f"M{i} {j}h{length}" for i, j in np.argwhere(here).tolist()]
    strokes = []
    for j, row in enumerate(here.T):
        edges = np.flatnonzero(np.diff(np.concatenate(([False], row, [False])).astype(np.int8)))
        strokes += [f"M{a} {j}h{b - a}" for a, b in edges.reshape(-1, 2).tolist()]
    return strokes


def _opacity(level: int) -> float:
    return 0.1 + 0.9 * level / LEVELS


def _step(needed: float) -> int:
    """The first round number of cells that makes enough room for a label."""
    return next(step for step in (1, 2, 5, 10, 20, 25, 50, 100, 1000) if step >= min(needed, 1000))
