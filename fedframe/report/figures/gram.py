"""Cosines between class vectors beside the ideal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedframe.report.figures.style import matrix, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure(data: dict[str, Any]) -> Figure:
    """A matrix per method, and the simplex that all could be."""
    variants = data["variants"]
    drawn, places = new_figure(width=2.9 * (len(variants) + 1), height=2.7, columns=len(variants) + 1)
    names, ideal = variants[0]["data"]["classes"], variants[0]["data"]["ideal"]
    simplex = [[1.0 if i == j else ideal for j in range(len(names))] for i in range(len(names))]
    matrices = [(one["name"], one["data"]["cosines"], one["data"]["classes"]) for one in variants]
    matrices.append((f"ideal: {ideal:.3g} between classes", simplex, names))
    for axes, (title, cells, labels) in zip(places, matrices, strict=True):
        matrix(axes, cells, "cosine", labels, labels, cmap="RdBu", vmin=-1, vmax=1, aspect="equal")
        axes.set_title(title)
    return drawn
