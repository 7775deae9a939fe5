"""Neural collapse over rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedframe.errors import DataError
from fedframe.report.figures.style import lines, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


NEGLIGIBLE = 0.01  # below it a measure is as good as zero, and its line shall lie there, as on the page


def reach(panel: dict[str, Any]) -> tuple[float, float]:
    """The ends of the axis: from 0 to the largest value, or as far as a measure has to go to be worth a look."""
    known = [value for line in panel["series"] for point in line["points"] for value in point[3:] if value is not None]
    low, high = min([0.0, *known]), max([NEGLIGIBLE, *known])
    margin = 0.05 * (high - low)
    return low - margin, high + margin


def figure(data: dict[str, Any]) -> Figure:
    """A small picture per measure."""
    panels = data["panels"]
    if not panels:
        raise DataError(f"There is nothing to draw for --what collapse. {data['note']}")
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    drawn, places = new_figure(width=2.3 * columns, height=1.8 * rows, columns=columns, rows=rows)
    for axes, panel in zip(places, panels, strict=False):
        lines(axes, panel["series"])
        axes.set_title(panel["label"])
        axes.set_ylim(*reach(panel))
    for axes in places[len(panels) :]:
        axes.remove()
    if len(panels[0]["series"]) > 1:
        places[0].legend()
    return drawn
