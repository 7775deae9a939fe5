"""Accuracy over rounds, with intervals over seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedframe.report.figures.style import lines, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure(data: dict[str, Any]) -> Figure:
    """A picture per score side by side, or all scores of one method in one."""
    panels = [panel for panel in data["panels"] if panel["share"]] or data["panels"][:1]
    drawn, places = new_figure(width=3.4 * len(panels), height=2.4, columns=len(panels))
    for axes, panel in zip(places, panels, strict=True):
        lines(axes, panel["series"], 100 if panel["share"] else 1)
        axes.set_ylabel("accuracy (%)" if panel["share"] else panel["label"])
        if len(panels) > 1:
            axes.set_title(panel["label"])
    places[0].legend(loc="lower right")
    return drawn
