"""Training samples by client and class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedframe.report.figures.style import matrix, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure(data: dict[str, Any]) -> Figure:
    """Clients across, classes down, on a square-root scale."""
    from matplotlib.colors import PowerNorm

    first = data["variants"][0]["data"]
    drawn, (axes,) = new_figure(width=5.2, height=max(1.6, min(6.0, 0.17 * len(first["classes"]) + 0.8)))
    by_class = [list(row) for row in zip(*first["counts"], strict=True)]
    norm = PowerNorm(0.5, vmin=0)
    matrix(axes, by_class, "training samples", first["classes"], first["clients"], cmap="Blues", norm=norm)
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    return drawn
