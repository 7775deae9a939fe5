"""How figures for papers look: one column wide, small type, colours that colour-blind readers can tell apart."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fedframe.report.canvas import SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN = 3.4  # inches: a column of a two-column paper
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
RULES: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": False,
    "grid.color": "#e4e7eb",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,  # text stays text: publishers refuse the default
    "svg.fonttype": "none",
    "svg.hashsalt": "fedframe",
    "text.parse_math": False,  # a dollar sign in a class name is a dollar sign
}


@contextlib.contextmanager
def paper_style() -> Iterator[None]:
    """Draw with these rules, and leave the user's own as they were."""
    import matplotlib as mpl

    with mpl.rc_context(RULES):
        yield


def new_figure(
    width: float = COLUMN, height: float = 2.3, columns: int = 1, rows: int = 1
) -> tuple[Figure, list[Axes]]:
    """An empty figure that no window belongs to, and its axes row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    return figure, [axes for row in grid for axes in row]


def colour(index: int) -> str:
    """The colour of a line."""
    return SERIES[index % len(SERIES)][0]


def dash(index: int) -> Any:
    """The stroke of a line, which tells it apart where colours come round again."""
    return DASHES[index // len(SERIES) % len(DASHES)]


def lines(axes: Axes, series: Sequence[dict[str, Any]], factor: float = 1.0) -> None:
    """Lines over rounds with their intervals."""
    from matplotlib.ticker import MaxNLocator

    for i, line in enumerate(series):
        points = line["points"]
        rounds = [point[0] for point in points]
        axes.plot(
            rounds, [factor * point[3] for point in points], color=colour(i), linestyle=dash(i), label=line["label"]
        )
        banded = [point for point in points if point[4] is not None]
        if banded:
            low, high = ([factor * point[k] for point in banded] for k in (4, 5))
            axes.fill_between([point[0] for point in banded], low, high, color=colour(i), alpha=0.18, linewidth=0)
    axes.grid(axis="y")
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def matrix(axes: Axes, cells: Any, label: str, rows: Sequence[str], columns: Sequence[str], **how: Any) -> None:
    """A heat map with its colour bar and as many names as fit."""
    import numpy as np

    image = axes.imshow(np.array(cells, dtype=float), aspect=how.pop("aspect", "auto"), interpolation="nearest", **how)
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.046, pad=0.03)
    bar.set_label(label)
    bar.outline.set_linewidth(0)
    for axis, names, most in ((axes.yaxis, rows, 24), (axes.xaxis, columns, 20)):
        step = -(-len(names) // most)
        axis.set_ticks(range(0, len(names), step), [shorten(name) for name in names[::step]])
        axis.set_tick_params(length=0)
    if any(len(name) > 3 for name in columns) and not all(name.isdigit() for name in columns):
        axes.tick_params(axis="x", labelrotation=90)
    for spine in axes.spines.values():
        spine.set_visible(False)


def shorten(name: str, most: int = 16) -> str:
    """A name that leaves room for the figure."""
    return name if len(name) <= most else name[: most - 1] + "…"
