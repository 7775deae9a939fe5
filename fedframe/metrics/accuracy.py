"""Which classes are taken for which."""

from __future__ import annotations

import torch
from torch import Tensor


def confusion(labels: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """How many samples of class i (rows) were taken for class j (columns): int64 (C, C)."""
    return torch.bincount(labels * classes + predicted, minlength=classes * classes).view(classes, classes)


def per_class(matrix: Tensor) -> list[float | None]:
    """The accuracy of each class from a confusion matrix; None for a class that was not tested."""
    hits, totals = matrix.diagonal().tolist(), matrix.sum(1).tolist()
    return [hit / total if total else None for hit, total in zip(hits, totals, strict=True)]
