"""Panels of a figure from measurements of runs: lines or bars over settings, curves, matrices, points on a plane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from fedframe.report.figures.style import add_title, colour, dash, matrix, new_figure, paper_style, printable, shorten
from fedframe.report.page.section import Data

MARKERS = ("o", "^", "s", "D", "v", "P")
MOST_ACROSS = 3  # panels side by side
MOST_NAMED = 12  # categories with a name in a legend
MOST_COLOURS = 8  # categories that have a colour of the palette; more share a range of colours
FEW = 40  # points that are few enough to be drawn large


def panel_figure(data: Data) -> Figure:
    """All panels of a figure with its title and caption."""
    with paper_style():
        return draw_panels(printable(data))


def draw_panels(data: Data) -> Figure:
    """The panels row by row; `across` says how many stand side by side."""
    panels = data["panels"]
    across = min(len(panels), data.get("across") or MOST_ACROSS)
    down = ceil(len(panels) / across)
    wide = 3.3 if any(panel["kind"] == "matrix" for panel in panels) else 3.0
    figure, places = new_figure(max(4.2, wide * across), 2.5 * down + 0.5, across, down)
    for axes, panel in zip(places, panels, strict=False):
        DRAWN[panel["kind"]](axes, panel)
        axes.set_title(panel["title"])
    for axes in places[len(panels) :]:
        axes.remove()
    title = data["title"]
    add_title(figure, title[:1].upper() + title[1:], data.get("caption", ""))
    return figure


def draw_sweep(axes: Axes, panel: Data) -> None:
    """A line, or bars, for each row over the points; whiskers are standard deviations over seeds."""
    names, numeric = panel["points"], panel["numeric"]
    places = [float(name) for name in names] if numeric else list(range(len(names)))
    if panel["bars"]:
        draw_bars(axes, panel, places)
    else:
        for i, line in enumerate(panel["lines"]):
            known = [(x, y, s) for x, y, s in zip(places, line["y"], line["spread"], strict=True) if y is not None]
            if not known:
                continue
            x, y, spreads = zip(*known, strict=True)
            whiskers = [spread or 0.0 for spread in spreads] if any(spreads) else None
            style: dict[str, Any] = {
                "marker": MARKERS[i % len(MARKERS)],
                "markersize": 3.5,
                "capsize": 2,
                "elinewidth": 0.8,
            }
            axes.errorbar(x, y, whiskers, color=colour(i), linestyle=dash(i), label=shorten(line["name"], 28), **style)
        if panel["log"]:
            axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(places, [shorten(name) for name in names])
    axes.set_xlabel(panel["x_label"])
    axes.set_ylabel(panel["y_label"])
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    name_lines(axes, len(panel["lines"]))


def draw_bars(axes: Axes, panel: Data, places: Sequence[float]) -> None:
    """Bars of the rows side by side at every point."""
    lines = panel["lines"]
    width = 0.8 / len(lines)
    for i, line in enumerate(lines):
        here = [place - 0.4 + width * (i + 0.5) for place in places]
        known = [(x, y, s) for x, y, s in zip(here, line["y"], line["spread"], strict=True) if y is not None]
        if known:
            x, y, spreads = zip(*known, strict=True)
            whiskers = [spread or 0.0 for spread in spreads] if any(spreads) else None
            axes.bar(x, y, 0.92 * width, yerr=whiskers, color=colour(i), label=shorten(line["name"], 28), capsize=2)


def draw_curves(axes: Axes, panel: Data) -> None:
    """Lines with names."""
    for i, line in enumerate(panel["lines"]):
        y = [float("nan") if value is None else value for value in line["y"]]
        marker = "." if len(y) <= 12 else None
        axes.plot(line["x"], y, color=colour(i), linestyle=dash(i), marker=marker, label=shorten(line["name"], 28))
    if panel["high"] is not None:
        axes.set_ylim(panel["low"] - 0.03 * (panel["high"] - panel["low"]), panel["high"])
    axes.set_xlabel(panel["x_label"])
    axes.set_ylabel(panel["y_label"])
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    name_lines(axes, len(panel["lines"]))


def name_lines(axes: Axes, lines: int) -> None:
    """A legend, where there is more than one line."""
    if lines > 1 and axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best", handlelength=1.6)


def draw_matrix(axes: Axes, panel: Data) -> None:
    """A heat map; numbers of both signs have two colours."""
    low, high = panel["low"], panel["high"]
    style = {"cmap": "RdBu" if low is not None and low < 0 else "viridis", "vmin": low, "vmax": high}
    matrix(axes, panel["cells"], panel["label"], panel["rows"], panel["columns"], **style)
    axes.set_xlabel(panel["x_label"] + facts_text(panel))
    axes.set_ylabel(panel["y_label"])


def draw_points(axes: Axes, panel: Data) -> None:
    """Points in the colours of one category and the markers of another, with a legend for both where they are few."""
    colours, markers = [*dict.fromkeys(panel["colour"])], [*dict.fromkeys(panel["marker"])]
    wheel = colormaps["turbo"]
    shades = [
        colour(i) if len(colours) <= MOST_COLOURS else wheel((i + 0.5) / len(colours)) for i in range(len(colours))
    ]
    size = 16 if len(panel["x"]) <= FEW else 7
    for i, kind in enumerate(colours):
        for j, form in enumerate(markers):
            here = [
                k for k, key in enumerate(zip(panel["colour"], panel["marker"], strict=True)) if key == (kind, form)
            ]
            label = ", ".join(name for name in (kind, form) if name)
            x, y = [panel["x"][k] for k in here], [panel["y"][k] for k in here]
            style: dict[str, Any] = {"marker": MARKERS[j % len(MARKERS)], "color": shades[i], "alpha": 0.75}
            axes.scatter(x, y, s=size, linewidths=0, label=label, **style)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel(f"{'t-SNE' if panel['projection'] == 'tsne' else 'principal components'}{facts_text(panel)}")
    if len(colours) * len(markers) <= MOST_NAMED:
        title = panel["colour_heading"] or None
        style = {"title": title, "title_fontsize": 7, "markerscale": 1.3, "handletextpad": 0.1}
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), **style)  # beside the points: it would hide some


def facts_text(panel: Data) -> str:
    """The numbers of a picture in a line below it."""
    known = {name: value for name, value in panel.get("facts", {}).items() if value is not None}
    return "".join(f"\n{name}: {value:.3g}" for name, value in known.items())


DRAWN: dict[str, Callable[[Axes, Data], None]] = {
    "sweep": draw_sweep,
    "curves": draw_curves,
    "matrix": draw_matrix,
    "points": draw_points,
}
