"""Floating-point operations of one sample, counted by torch: products and sums of matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from fedframe.core.method import Method
from fedframe.core.model import Model


def count_flops(method: Method, model: Model, shape: Sequence[int]) -> tuple[int, int]:
    """Operations of a prediction, and of a training step on cross-entropy (forward and backward), for one sample.

    What parts add to a step (penalties, second models) is not in it.
    """
    from torch.utils.flop_counter import FlopCounterMode

    device = next(model.parameters()).device
    inputs = torch.zeros(1, *shape, device=device)
    model.eval()  # BatchNorm has no statistics of a single sample, and must not learn any
    with torch.no_grad(), FlopCounterMode(display=False) as prediction:
        method.logits(model, inputs)
    learns = [p for p in model.parameters() if p.requires_grad]
    with torch.enable_grad(), FlopCounterMode(display=False) as training:
        loss = F.cross_entropy(method.logits(model, inputs), torch.zeros(1, dtype=torch.int64, device=device))
        if loss.requires_grad:
            torch.autograd.grad(loss, learns, allow_unused=True)  # leaves no gradient behind
    return int(prediction.get_total_flops()), int(training.get_total_flops())
