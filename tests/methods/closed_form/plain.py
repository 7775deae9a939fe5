"""Plain references in float64: loops over pooled samples, no sums over clients."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.float64]


def draw(seed: int, n: int, dim: int, classes: int) -> tuple[Tensor, Tensor]:
    """Features (float32) about class centres, with an offset and unequal deviations, and labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=generator)
    centres = torch.randn(classes, dim, generator=generator)
    noise = torch.randn(n, dim, generator=generator)
    scales = 0.1 + 3 * torch.rand(dim, generator=generator)
    return ((centres[labels] + noise) * scales + 1).float(), labels


def pooled_ridge(features: Tensor, labels: Tensor, classes: int, ridge: float) -> tuple[Array, Array]:
    """Weight and bias of ridge regression on standardised pooled data, by the normal equations of augmented rows."""
    z, y = features.double().numpy(), np.eye(classes)[labels.numpy()]
    mean, deviation = z.mean(0), z.std(0)
    inverse = np.array([1 / s if s > 1e-5 else 0.0 for s in deviation])
    x = (z - mean) * inverse
    rows = np.vstack([x, math.sqrt(ridge * len(z)) * np.eye(x.shape[1])])
    targets = np.vstack([y - y.mean(0), np.zeros((x.shape[1], classes))])
    w = np.linalg.lstsq(rows, targets, rcond=None)[0] * inverse[:, None]
    return w.T, y.mean(0) - mean @ w


def left_out_error(features: Tensor, labels: Tensor, classes: int, ridge: float) -> float:
    """Mean squared error of every sample's scores by the classifier that was fitted to all others.

    Features keep the mean and deviation of all samples, as they do in GCV; the intercept is fitted anew.
    """
    z, y = features.double().numpy(), np.eye(classes)[labels.numpy()]
    x = (z - z.mean(0)) / z.std(0)
    total = 0.0
    for i in range(len(x)):
        rest = np.arange(len(x)) != i
        a, b = x[rest] - x[rest].mean(0), y[rest] - y[rest].mean(0)
        w = np.linalg.solve(a.T @ a + ridge * len(x) * np.eye(x.shape[1]), a.T @ b)
        total += float(np.square(y[i] - y[rest].mean(0) - (x[i] - x[rest].mean(0)) @ w).sum())
    return total / len(x)
