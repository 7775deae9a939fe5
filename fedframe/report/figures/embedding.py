"""Features on a plane, by class and by client."""

from __future__ import annotations

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedframe.report.figures.style import colour, new_figure, shorten
from fedframe.report.page.section import Data

MOST_NAMED = 10  # categories with a name in the legend, and a colour of their own


def embedding(data: Data) -> Figure:
    """The same points twice: coloured by class and by client."""
    first = data["variants"][0]["data"]
    figure, places = new_figure(width=6.8, height=3.0, columns=2)
    classes = dict(enumerate(first["classes"]))
    clients = {int(number): name for number, name in first["clients"].items()}
    for axes, key, names in ((places[0], "class", classes), (places[1], "client", clients)):
        scatter(axes, first["x"], first["y"], first[key], names)
        axes.set_title(f"by {key} ({first['method']})")
    return figure


def scatter(axes: Axes, x: list[float], y: list[float], keys: list[int], names: dict[int, str]) -> None:
    """Points in the colours of their category."""
    kinds = sorted(set(keys))
    wheel = colormaps["turbo"]
    for i, kind in enumerate(kinds):
        here = [j for j, key in enumerate(keys) if key == kind]
        shade = colour(i) if len(kinds) <= 8 else wheel((i + 0.5) / len(kinds))
        label = shorten(names.get(kind, str(kind)))
        axes.scatter([x[j] for j in here], [y[j] for j in here], s=3, color=shade, linewidths=0, label=label, alpha=0.8)
    axes.set_xticks([])
    axes.set_yticks([])
    if len(kinds) <= MOST_NAMED:
        axes.legend(markerscale=2.5, handletextpad=0.1, loc="center left", bbox_to_anchor=(1, 0.5))
