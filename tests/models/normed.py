"""A small net with BatchNorm, for tests: `model="tests.models.normed:normed"`."""

from __future__ import annotations

import math

from torch import nn


def normed(shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 12), nn.BatchNorm1d(12), nn.ReLU())
