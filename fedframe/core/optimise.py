"""The local optimiser."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from fedframe.settings import Settings


def make_optimizer(settings: Settings, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """A fresh optimiser; fused kernels are one pass over the weights."""
    decay = settings.weight_decay
    if settings.optimizer == "sgd":
        return torch.optim.SGD(
            parameters, lr=lr, momentum=settings.momentum, nesterov=settings.nesterov, weight_decay=decay, fused=True
        )
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=lr, weight_decay=decay, fused=True)
