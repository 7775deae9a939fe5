"""FedLoGe's feature degeneration: few features of a class are large, and the many small ones are noise.

Xiao et al., FedLoGe, ICLR 2024, Fig. 1, Fig. 3, A.3. Of the features h_ic of class c, the mean of every coordinate is
taken and the coordinates are sorted by it, falling; their variances follow the same order. Had features collapsed,
variances would be zero. The pruning curve sets those entries of every class vector to zero whose coordinate has the
smallest means of that class (or, beside it, the largest) and asks for the accuracy that is left.

Differs from the paper in: coordinates are sorted by the size of their mean, which is the same for features behind a
ReLU; beside the curves of the classes stand their means over classes; the means that say what to prune are those of
training samples, so that no test label is used. The paper's relative variance is taken as variance / mean^2 of the
curves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedframe.metrics.collapse import class_means

SHARES = tuple(round(0.05 * step, 2) for step in range(20, -1, -1))  # of the coordinates that are kept
MOST_RANKS = 100  # points of a curve
AT_ONCE = 1024


def sorted_curves(features: Tensor, labels: Tensor, classes: int) -> dict[str, Any] | None:
    """Sorted means and variances of every class and over all of them; None without a class of two samples.

    The row of a class with fewer samples is empty. Long curves are thinned out to `ranks`, evenly spread.
    """
    means, counts = class_means(features, labels, classes)
    squares = torch.zeros_like(means)
    for part in torch.arange(len(features)).split(AT_ONCE):  # type: ignore[no-untyped-call]
        squares.index_add_(0, labels[part], (features[part].double() - means[labels[part]]).square())
    present = (counts > 1).nonzero().flatten()
    if not len(present):
        return None
    order = means[present].abs().argsort(dim=1, descending=True, stable=True)
    ranked = means[present].abs().gather(1, order)
    variances = (squares[present] / counts[present, None]).gather(1, order)
    ranks = evenly_spaced(ranked.shape[1], MOST_RANKS)
    rows = {c: row for row, c in enumerate(present.tolist())}
    mean, variance = ranked.mean(0), variances.mean(0)
    relative = variance / mean.square().clamp_min(torch.finfo(torch.float64).tiny)
    return {
        "ranks": ranks.tolist(),
        "sorted_means": [ranked[rows[c], ranks].tolist() if c in rows else [] for c in range(classes)],
        "variances": [variances[rows[c], ranks].tolist() if c in rows else [] for c in range(classes)],
        "mean": mean[ranks].tolist(),
        "variance": variance[ranks].tolist(),
        "relative_variance": [value if value < 1e12 else None for value in relative[ranks].tolist()],
    }


def zero_shares(W: Tensor, means: Tensor) -> Tensor:
    """By rank of the class means, falling: the share of classes whose vector has a zero there. It is (dim,)."""
    order = means.abs().argsort(dim=1, descending=True, stable=True)
    return (W.gather(1, order) == 0).double().mean(0)


def evenly_spaced(count: int, most: int) -> Tensor:
    """At most `most` integers below `count`, evenly spaced, including the first and the last."""
    return torch.linspace(0, count - 1, min(count, most), dtype=torch.float64).round().long()


def pruning_curve(
    features: Tensor, labels: Tensor, W: Tensor, b: Tensor, means: Tensor
) -> list[dict[str, float | None]]:
    """Accuracy by the share of coordinates that is kept in every class vector: the largest, or the smallest ones.

    `means` (classes, dim) say which coordinates of a class are large.
    """
    dim = W.shape[1]
    order = means.abs().argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(dim).expand_as(order))
    curve: list[dict[str, float | None]] = []
    for share in SHARES:
        kept = round(share * dim)
        curve.append(
            {
                "kept": share,
                "accuracy": accuracy(features, labels, W * (rank < kept), b),
                "smallest_kept": accuracy(features, labels, W * (rank >= dim - kept), b),
            }
        )
    return curve


def accuracy(features: Tensor, labels: Tensor, W: Tensor, b: Tensor) -> float | None:
    """Accuracy of the linear classifier W h + b."""
    if not len(labels):
        return None
    W, b = W.float(), b.float()
    right = 0
    for part, wanted in zip(features.split(AT_ONCE), labels.split(AT_ONCE), strict=True):  # type: ignore[no-untyped-call]
        right += int(((part @ W.T + b).argmax(1) == wanted).sum())
    return right / len(labels)
