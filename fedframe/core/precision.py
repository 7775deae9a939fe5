"""Computing in fewer bits: the backbone in bfloat16 or float16, everything else as before.

Autocast runs the backbone's matrix products and convolutions in the smaller type; its features come back in float32.
Weights, optimiser, classifier, losses and merging never leave float32 and float64. float16 has a small range, so the
loss is scaled up before the backward pass and gradients down after it; a step whose gradients overflow is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedframe.errors import SettingError
from fedframe.models.feature_maps import has_bfloat16_units

if TYPE_CHECKING:
    from fedframe.core.model import Model

COMPUTE_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
FIRST_SCALE = 2.0**13
GROW_AFTER = 200  # steps without an overflow after which the scale doubles


def check_precision(precision: str, device: str) -> None:
    """Refuse float16 where nothing computes in it."""
    if precision == "fp16" and device == "cpu":
        raise SettingError("precision = 'fp16' is for GPUs, and device = 'cpu'; use bf16 or float32.")


def precision_note(precision: str, device: str) -> str:
    """A sentence about a precision that costs time on this machine instead of saving it; empty if there is none."""
    if precision == "bf16" and device == "cpu" and not has_bfloat16_units():
        return "precision = bf16: this processor has no units for it, so training will be slower than with float32."
    return ""


@contextmanager
def full_precision(model: Model) -> Iterator[None]:
    """Compute in float32 meanwhile: what closed forms are made of should not be rounded."""
    before, model.compute_type = model.compute_type, None
    try:
        yield
    finally:
        model.compute_type = before


class LossScale:
    """The factor on the loss of float16 training; each client starts with the same one."""

    def __init__(self) -> None:
        self.factor = FIRST_SCALE
        self.steps = 0  # since the last overflow
        self.overflowed = False

    def backward(self, loss: Tensor, weights: Collection[nn.Parameter]) -> None:
        """The gradient of the loss; zero, to be left out, if it overflowed."""
        (loss * self.factor).backward()  # type: ignore[no-untyped-call]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        for gradient in gradients:
            gradient.div_(self.factor)
        self.overflowed = not all(bool(gradient.isfinite().all()) for gradient in gradients)
        if self.overflowed:
            self.factor, self.steps = self.factor / 2, 0
            for gradient in gradients:
                gradient.zero_()
        else:
            self.steps += 1
            if self.steps % GROW_AFTER == 0:
                self.factor *= 2
