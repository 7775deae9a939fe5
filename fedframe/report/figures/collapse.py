"""Neural collapse over rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedframe.errors import DataError
from fedframe.report.figures.style import lines, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
    for axes in places[len(panels) :]:
        axes.remove()
    if len(panels[0]["series"]) > 1:
        places[0].legend()
    return drawn
