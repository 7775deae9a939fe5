"""The spread over clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedframe.report.figures.style import colour, dash, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure(data: dict[str, Any]) -> Figure:
    """Accuracies from the worst served client to the best, a picture per kind of model."""
    panels = data["panels"]
    drawn, places = new_figure(width=3.4 * len(panels), height=2.4, columns=len(panels))
    for axes, panel in zip(places, panels, strict=True):
        for i, line in enumerate(panel["series"]):
            values = [100 * value for value in line["values"]]
            shares = [100 * rank / max(1, len(values) - 1) for rank in range(len(values))]
            marker = "." if len(values) <= 60 else None
            axes.plot(shares, values, color=colour(i), linestyle=dash(i), marker=marker, label=line["label"])
        axes.axvspan(0, 10, color="#c2410c", alpha=0.08, linewidth=0)
        axes.grid(axis="y")
        axes.set_xlabel("clients, worst to best (%)")
        axes.set_ylabel("accuracy on own test data (%)")
        axes.legend(loc="lower right")
        if len(panels) > 1:
            axes.set_title(panel["label"])
    return drawn
