"""How figures for papers look: small type, a light background, colours that colour-blind readers can tell apart.

Figures are objects of their own: no window, no display and no global state of matplotlib is involved.
"""

from __future__ import annotations

import contextlib
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLUMN = 3.4  # inches: a column of a two-column paper
DIM = "#59636e"  # small print
# Distinguishable also for colour-blind readers (tests/report/test_colours.py), with a contrast of 3 or more; the page's
# theme.js has the same ones.
COLOURS = ("#12479e", "#e0660a", "#0a9a72", "#c9499c", "#5a4108", "#2b93c4", "#7a5fd0", "#3c434c")
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
    "pdf.fonttype": 42,  # text stays text: publishers refuse the default
    "svg.fonttype": "none",
    "svg.hashsalt": "fedframe",  # the same figure has the same bytes
    "text.parse_math": False,  # a dollar sign in a class name is a dollar sign
}
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@contextlib.contextmanager
def paper_style() -> Iterator[None]:
    """Draw with these rules, and leave the user's own as they were."""
    with mpl.rc_context(RULES), warnings.catch_warnings():
        # A name in a script that the font lacks stays text in an SVG file, which the reader's fonts show.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def new_figure(
    width: float = COLUMN, height: float = 2.3, columns: int = 1, rows: int = 1
) -> tuple[Figure, list[Axes]]:
    """An empty figure and its axes, row by row."""
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    return figure, [axes for row in grid for axes in row]


def add_title(
    figure: Figure, title: str, caption: str = "", *, x: float = 0.01, top: float | None = None, bottom: float = 0.01
) -> None:
    """A headline above the figure and small print below it, both broken into lines that fit.

    The layout of the figure makes room for both, unless it has none: then they stand above `top` and below `bottom`.
    """
    width = figure.get_size_inches()[0]
    style = {"x": x, "ha": "left"}
    place = {} if top is None else {"y": top, "va": "bottom"}
    figure.suptitle(_wrapped(title, round(15 * width)), fontsize=9, fontweight="bold", **style, **place)
    if caption:
        place = {} if top is None else {"y": bottom, "va": "top"}
        figure.supxlabel(_wrapped(caption, round(20 * width)), fontsize=6.5, color=DIM, **style, **place)


def colour(index: int) -> str:
    """The colour of a line."""
    return COLOURS[index % len(COLOURS)]


def dash(index: int) -> Any:
    """The stroke of a line, which distinguishes it once the colours repeat."""
    return DASHES[index // len(COLOURS) % len(DASHES)]


def matrix(axes: Axes, cells: Any, label: str, rows: Sequence[str], columns: Sequence[str], **how: Any) -> None:
    """A heat map with its colour bar and as many names as fit."""
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
    """A name short enough to leave room for the figure, with an ellipsis for what is cut off."""
    return name if len(name) <= most else name[: most - 1] + "…"


def printable(value: Any) -> Any:
    """The same values, with a box in place of every character that XML does not allow in a text."""
    if isinstance(value, str):
        return _ILLEGAL.sub("\u25a1", value)
    if isinstance(value, dict):
        return {printable(key): printable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [printable(each) for each in value]
    return value


def _wrapped(text: str, characters: int) -> str:
    return "\n".join(textwrap.wrap(text, characters))
