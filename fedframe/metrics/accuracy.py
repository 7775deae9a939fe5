"""Accuracy by class, on frequent, middling and rare classes (long-tailed learning), and its spread over clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev

import torch
from torch import Tensor

GROUPS = ("many", "medium", "few")
CUTS = (0.75, 0.95)  # shares of the training samples, as in FedLoGe (Xiao et al., ICLR 2024, A.1)
TAIL = 3  # groups are distinguished if the largest class has this many times the samples of the smallest


def confusion(labels: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """How many samples of class i (rows) were taken for class j (columns): int64 (C, C)."""
    return torch.bincount(labels * classes + predicted, minlength=classes * classes).view(classes, classes)


def per_class(matrix: Tensor) -> list[float | None]:
    """The accuracy of each class from a confusion matrix; None for a class that was not tested."""
    hits, totals = matrix.diagonal().tolist(), matrix.sum(1).tolist()
    return [hit / total if total else None for hit, total in zip(hits, totals, strict=True)]


def has_tail(counts: Mapping[str, int]) -> bool:
    """Whether classes differ so much in size that one mean hides the rare ones."""
    return bool(counts) and max(counts.values()) >= TAIL * max(1, min(counts.values()))


def class_groups(counts: Sequence[int], cuts: Sequence[float] = CUTS) -> list[str]:
    """The group of every class: classes in falling order of their training samples, cut in two places.

    A cut below 1 is a share of the samples (the class in which the share is reached is still in front of it), any
    other the number of classes in front of it.
    """
    order = sorted(range(len(counts)), key=lambda c: (-counts[c], c))
    total = sum(counts)
    groups = [""] * len(counts)
    before = 0
    for rank, c in enumerate(order):
        passed = sum(before >= cut * total if cut < 1 else rank >= cut for cut in cuts)
        groups[c] = GROUPS[passed]
        before += counts[c]
    return groups


def accuracy_by_group(
    per_class: Mapping[str, float | None], counts: Mapping[str, int], cuts: Sequence[float] = CUTS
) -> dict[str, float | None]:
    """Mean accuracy over the classes of each group; None for a group without a class that was tested."""
    names = list(counts)
    members: dict[str, list[float]] = {group: [] for group in GROUPS}
    for name, group in zip(names, class_groups([counts[name] for name in names], cuts), strict=True):
        accuracy = per_class.get(name)
        if accuracy is not None:
            members[group].append(accuracy)
    return {group: fmean(values) if values else None for group, values in members.items()}


def spread(accuracies: Sequence[float], sign: int = 1) -> dict[str, float] | None:
    """Standard deviation over the clients (of all of them, not of a sample), mean of the worst tenth, worst and best.

    The worst tenth is a tenth of the clients, rounded up; None if there are no clients. With `sign` -1 less is better;
    `min` and `max` are the worst and the best.
    """
    if not accuracies:
        return None
    order = sorted(accuracies, key=lambda value: sign * value)
    worst = order[: math.ceil(len(accuracies) / 10)]
    return {
        "std": pstdev(accuracies),
        "worst_tenth": fmean(worst),
        "min": order[0],
        "max": order[-1],
    }
