"""Expected calibration error: how far a model's confidence is from its accuracy.

Guo et al., On Calibration of Modern Neural Networks, ICML 2017, Eq. 3: samples are put into bins of equal width by the
probability p of the predicted class, bin m being (m/M, (m+1)/M], and
    ECE = sum_m |B_m| / n  | accuracy(B_m) - mean p(B_m) |
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BINS = 15


class Calibration:
    """Accumulates confidences batch by batch, in constant memory."""

    def __init__(self, bins: int = BINS) -> None:
        self.bins = bins
        self.count = torch.zeros(bins, dtype=torch.float64)
        self.confidence = torch.zeros(bins, dtype=torch.float64)
        self.right = torch.zeros(bins, dtype=torch.float64)

    def add(self, confidence: Tensor, right: Tensor) -> None:
        """Add a batch: probabilities of the predicted classes, and whether these were right."""
        wide = confidence.double()
        place = (wide * self.bins).ceil().long().sub(1).clamp(0, self.bins - 1)
        self.count += torch.bincount(place, minlength=self.bins)
        self.confidence += torch.bincount(place, wide, minlength=self.bins)
        self.right += torch.bincount(place, right.double(), minlength=self.bins)

    def result(self) -> dict[str, Any] | None:
        """The error and its bins; None without samples."""
        total = float(self.count.sum())
        if not total:
            return None
        bins = [
            {
                "from": m / self.bins,
                "to": (m + 1) / self.bins,
                "count": int(count),
                "confidence": confidence / count if count else None,
                "accuracy": right / count if count else None,
            }
            for m, (count, confidence, right) in enumerate(
                zip(self.count.tolist(), self.confidence.tolist(), self.right.tolist(), strict=True)
            )
        ]
        return {"error": float((self.right - self.confidence).abs().sum()) / total, "bins": bins}
