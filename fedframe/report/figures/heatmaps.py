"""Matrices as heat maps: confusion, the classifier's Gram matrix, and client drift."""

from __future__ import annotations

from matplotlib.figure import Figure

from fedframe.report.figures.style import matrix, new_figure
from fedframe.report.page.section import Data


def confusion(data: Data) -> Figure:
    """A row per true class, a column per predicted one, as shares of the true class; a matrix per method."""
    variants = data["variants"]
    figure, places = new_figure(width=3.4 * len(variants), height=3.0, columns=len(variants))
    for axes, variant in zip(places, variants, strict=True):
        counts, names = variant["data"]["counts"], variant["data"]["classes"]
        shares = [[100 * count / max(1, sum(row)) for count in row] for row in counts]
        matrix(axes, shares, "% of the true class", names, names, cmap="Blues", vmin=0, vmax=100, aspect="equal")
        if len(names) <= 12:
            for i, row in enumerate(shares):
                for j, share in enumerate(row):
                    if share >= 0.5:
                        ink = "w" if share > 55 else "k"
                        axes.text(j, i, f"{share:.0f}", ha="center", va="center", fontsize=6, color=ink)
        axes.set_xlabel("predicted class")
        axes.set_ylabel("true class")
        if len(variants) > 1:
            axes.set_title(variant["name"])
    return figure


def gram(data: Data) -> Figure:
    """Cosines between class vectors, a matrix per method, beside the simplex that is the ideal for all of them."""
    variants = data["variants"]
    figure, places = new_figure(width=2.9 * (len(variants) + 1), height=2.7, columns=len(variants) + 1)
    names, ideal = variants[0]["data"]["classes"], variants[0]["data"]["ideal"]
    simplex = [[1.0 if i == j else ideal for j in range(len(names))] for i in range(len(names))]
    matrices = [(one["name"], one["data"]["cosines"], one["data"]["classes"]) for one in variants]
    matrices.append((f"ideal: {ideal:.3g} between classes", simplex, names))
    for axes, (title, cells, labels) in zip(places, matrices, strict=True):
        matrix(axes, cells, "cosine", labels, labels, cmap="RdBu", vmin=-1, vmax=1, aspect="equal")
        axes.set_title(title)
    return figure


def drift(data: Data) -> Figure:
    """Cosine of each client's update with the server's step: clients down, rounds across, a matrix per method."""
    variants = data["variants"]
    figure, places = new_figure(width=3.6 * len(variants), height=2.8, columns=len(variants))
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
    return figure
