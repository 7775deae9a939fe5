"""What is taken for what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedframe.report.figures.style import matrix, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure(data: dict[str, Any]) -> Figure:
    """A matrix per method, each row in percent of its true class."""
    variants = data["variants"]
    drawn, places = new_figure(width=3.4 * len(variants), height=3.0, columns=len(variants))
    for axes, variant in zip(places, variants, strict=True):
        counts, names = variant["data"]["counts"], variant["data"]["classes"]
        shares = [[100 * count / max(1, sum(row)) for count in row] for row in counts]
        matrix(axes, shares, "% of the true class", names, names, cmap="Blues", vmin=0, vmax=100, aspect="equal")
        if len(names) <= 12:
            for i, row in enumerate(shares):
                for j, share in enumerate(row):
                    if share >= 0.5:
                        axes.text(
                            j, i, f"{share:.0f}", ha="center", va="center", fontsize=6, color="w" if share > 55 else "k"
                        )
        axes.set_xlabel("predicted class")
        axes.set_ylabel("true class")
        if len(variants) > 1:
            axes.set_title(variant["name"])
    return drawn
