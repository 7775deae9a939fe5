"""Which client holds what: clients across, classes down, sizes of both as bars at the sides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure

from fedframe.report.figures.style import DIM, add_title, paper_style, printable, shorten
from fedframe.report.tables import short

Counts = npt.NDArray[Any]  # (clients, classes)

MOST_COLUMNS, MOST_ROWS, MOST_CELLS = 240, 120, 16_000
WIDTH, HEIGHT = 5.4, 4.2  # inches that the cells take at most
BARS, SIDE = 0.45, 0.6  # inches: height of the clients' bars, width of the classes' bars
BAR, EMPTY = "#aeb6bf", "#f2f5fb"
SHADES = LinearSegmentedColormap.from_list("counts", ["#d3e0f7", "#1f5fd0"])
DIGIT = 0.052  # inches that a character of 6 points takes


@paper_style()
def partition_figure(
    counts: Counts, classes: Sequence[str], title: str, names: Sequence[str] | None = None, note: str = ""
) -> Figure:
    """Draw how many samples of each class every client holds.

    Parameters
    ----------
    counts
        Samples, (clients, classes).
    classes
        A name per class.
    title
        The headline.
    names
        A name per client; None numbers them from 0.
    note
        A sentence to add to the small print.
    """
    counts = np.asarray(counts)
    if counts.ndim != 2 or counts.shape[1] != len(classes) or 0 in counts.shape:
        raise ValueError(f"a table of shape {counts.shape} does not fit {len(classes)} classes")
    together = math.ceil(len(classes) / MOST_ROWS)
    rows = np.add.reduceat(counts, range(0, len(classes), together), axis=1)
    # Adding up neighbouring clients would hide how different they are: many clients are thinned out instead.
    stride = math.ceil(len(counts) / min(MOST_COLUMNS, MOST_CELLS // rows.shape[1]))
    cells = rows[::stride]  # (columns, rows)
    clients = [str(i) for i in range(len(counts))] if names is None else list(names)
    columns, classes, title = printable((clients[::stride], [str(name) for name in classes[::together]], title))
    width, height = min(WIDTH, max(0.5, 0.42 * len(cells))), min(HEIGHT, 0.19 * len(classes))
    cell = (width / len(cells), height / len(classes))

    # The picture is laid out in inches from the lower left corner of the cells; what is left empty is cut off.
    figure = Figure(figsize=(max(3.4, width + SIDE + 0.8), height + BARS + 0.4))
    across, up = (1 / float(inches) for inches in figure.get_size_inches())

    def axes_at(x: float, y: float, wide: float, high: float, **share: Any) -> Axes:
        return figure.add_axes((x * across, y * up, wide * across, high * up), **share)

    main = axes_at(0, 0, width, height)
    draw_cells(main, cells)
    label_cells(main, cells, *cell)
    label_axis(main.yaxis, classes, cell[1], "class")
    depth = label_axis(main.xaxis, columns, cell[0], "client")
    client_bars(axes_at(0, height + 0.12, width, BARS, sharex=main), cells.sum(1))
    class_bars(axes_at(width + 0.08, 0, SIDE, height, sharey=main), rows.sum(0), cell[1])
    left = -DIGIT * max(8, *(len(shorten(name, 20)) for name in classes)) - 0.3
    add_scale(axes_at(left, -depth - 0.42, 1.0, 0.09), main, int(cells.max()))
    place = {"x": left * across, "top": (height + BARS + 0.25) * up, "bottom": (-depth - 0.5) * up}
    add_title(figure, title, " ".join(filter(None, (summary(counts, stride, together), note))), **place)
    return figure


def draw_cells(axes: Axes, cells: Counts) -> None:
    """A colour per count on a square-root scale, so that small counts show; empty cells stay pale."""
    shown = np.ma.masked_equal(cells.T, 0)
    axes.set_facecolor(EMPTY)
    axes.imshow(
        shown, SHADES, PowerNorm(0.5, vmin=0, vmax=max(1, int(cells.max()))), aspect="auto", interpolation="none"
    )
    axes.set_xticks(np.arange(len(cells) - 1) + 0.5 if len(cells) <= 120 else [], minor=True)
    axes.set_yticks(np.arange(cells.shape[1] - 1) + 0.5, minor=True)
    axes.grid(which="minor", color="w", linewidth=0.8 if max(cells.shape) <= 40 else 0.3)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)


def label_cells(axes: Axes, cells: Counts, width: float, height: float) -> None:
    """Write the counts into the cells, where the largest one fits."""
    whole = [f"{count:,.0f}" for count in cells.flat]
    brief = [short(count) for count in cells.flat]
    fitting = next((texts for texts in (whole, brief) if DIGIT * max(map(len, texts)) + 0.02 <= width), None)
    if fitting is None or height < 0.11:
        return
    dark = 0.35 * max(1, int(cells.max()))
    for (i, j), text in zip(np.ndindex(*cells.shape), fitting, strict=True):
        if cells[i, j]:
            ink = "w" if cells[i, j] > dark else "#1f2328"
            axes.text(i, j, text, ha="center", va="center", fontsize=6, color=ink)


def label_axis(axis: Any, names: Sequence[str], room: float, label: str) -> float:
    """Name the rows or columns, every so many where there is no room (inches) for each; gives the names' depth."""
    texts = [shorten(name, 20) for name in names]
    across = axis.axis_name == "x"
    turned = across and not all(text.isdigit() for text in texts) and DIGIT * max(map(len, texts)) + 0.06 > room
    needed = 0.12 if turned or not across else DIGIT * max(map(len, texts)) + 0.08
    step = next(step for step in (1, 2, 5, 10, 20, 25, 50, 100, 1000) if step * room >= needed or step == 1000)
    axis.set_ticks(range(0, len(texts), step), texts[::step], fontsize=6.5)
    axis.set_tick_params(labelrotation=90 if turned else 0)
    axis.set_label_text(label, fontsize=7)
    return DIGIT * max(map(len, texts)) if turned else 0.1


def client_bars(axes: Axes, sizes: Counts) -> None:
    """Samples per client, above the columns."""
    most = max(1, int(sizes.max()))
    axes.bar(range(len(sizes)), sizes, width=0.92 if len(sizes) <= 120 else 1, color=BAR)
    axes.tick_params(which="both", length=0, labelbottom=False)
    axes.set_yticks([most], [f"{most:,}"], fontsize=6.5)
    axes.set_ylim(0, most)
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    axes.set_ylabel("samples\nper client", rotation=0, ha="right", va="center", fontsize=6.5, color=DIM)
    axes.spines[:].set_visible(False)


def class_bars(axes: Axes, totals: Counts, room: float) -> None:
    """Samples per class over all clients, drawn or not, beside the rows."""
    most = max(1, int(totals.max()))
    axes.barh(range(len(totals)), totals, height=0.88, color=BAR)
    step = next(step for step in (1, 2, 5, 10, 20, 1000) if step * room >= 0.12 or step == 1000)
    for i in range(0, len(totals), step):
        end = totals[i] if step == 1 else most  # a number must not cover the bars above and below
        style: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 6, "color": DIM}
        axes.annotate(short(totals[i]), (end, i), (2, 0), **style)
    axes.tick_params(which="both", length=0, labelleft=False)
    axes.set_xticks([])
    axes.set_xlim(0, most)  # the numbers stand behind the bars
    axes.set_title("per class", fontsize=6.5, color=DIM, loc="left")
    axes.spines[:].set_visible(False)


def add_scale(axes: Axes, main: Axes, most: int) -> None:
    """Explain the colours of the cells."""
    image = main.images[0]
    bar = axes.figure.colorbar(image, cax=axes, orientation="horizontal", ticks=[])
    bar.outline.set_linewidth(0)
    words = f"1 to {most:,} samples in a cell (square-root scale)"
    axes.text(1.06, 0.5, words, transform=axes.transAxes, va="center", fontsize=6.5, color=DIM)


def summary(counts: Counts, stride: int, together: int) -> str:
    """How samples and classes spread over the clients, and what the figure leaves out."""
    sizes, held = counts.sum(1), (counts > 0).sum(1)
    text = (
        f"{len(counts):,} clients, {counts.shape[1]:,} classes, {int(sizes.sum()):,} samples. A client has "
        f"{_span(sizes)} samples (median {int(np.median(sizes)):,}) of {_span(held)} classes."
    )
    if stride > 1:
        text += f" One client in {stride} is drawn."
    if together > 1:
        text += f" Each row adds up {together} classes."
    return text


def _span(values: npt.NDArray[Any]) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
