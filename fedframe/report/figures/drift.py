"""How clients' updates agree with the server's step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedframe.report.figures.style import matrix, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure(data: dict[str, Any]) -> Figure:
    """Clients down, rounds across, a picture per method."""
    variants = data["variants"]
    drawn, places = new_figure(width=3.6 * len(variants), height=2.8, columns=len(variants))
    for axes, variant in zip(places, variants, strict=True):
        found = variant["data"]
        cells = [[float("nan") if value is None else value for value in row] for row in found["cosine"]]
        rounds = [str(round) for round in found["rounds"]]
        axes.set_facecolor("#e9ecf0")  # clients that were not in the round
        matrix(axes, cells, "cosine with the step", found["clients"], rounds, cmap="RdBu", vmin=-1, vmax=1)
        axes.set_xlabel("round")
        axes.set_ylabel("client")
        if len(variants) > 1:
            axes.set_title(variant["name"])
    return drawn
