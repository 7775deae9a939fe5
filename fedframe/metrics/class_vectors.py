"""The classifier as a matrix, whatever a method predicts with: logits = W h + b for the feature h that reaches it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedframe.core.method import Method
from fedframe.core.model import Model

AT_ONCE = 512  # features pushed through the classifier together
TOLERANCE = 1e-3  # of what a linear map may differ from the classifier, relative to the largest logit


@torch.no_grad()
def class_vectors(method: Method, model: Model) -> tuple[Tensor, Tensor] | None:
    """W (classes, dim) and b in float64, on the CPU; None for a classifier that is not linear.

    A plain linear head is read; one that a part predicts with instead (a second head, a sum of two) is found by asking
    for the logits of every unit vector, and tried on others.
    """
    if not method.parts_with("predict") and type(model.head) is nn.Linear:
        bias = model.head.bias
        zeros = torch.zeros(model.classes, dtype=torch.float64)
        return model.head.weight.detach().double().cpu(), zeros if bias is None else bias.detach().double().cpu()
    device = next(model.parameters()).device
    b = method.classify(model, torch.zeros(1, model.dim, device=device))[0]
    units = torch.eye(model.dim, device=device).split(AT_ONCE)  # type: ignore[no-untyped-call]
    W = torch.cat([method.classify(model, rows) - b for rows in units]).T
    probe = torch.randn(8, model.dim, generator=torch.Generator().manual_seed(0)).to(device)
    found, expected = method.classify(model, probe), probe @ W.T + b
    if not bool(torch.isfinite(found).all()):
        return None
    if float((found - expected).abs().max()) > TOLERANCE * float(found.abs().max().clamp_min(1e-6)):
        return None
    return W.double().cpu(), b.double().cpu()


def gram(W: Tensor) -> dict[str, Any]:
    """Cosines between all class vectors, their norms, and the cosine of the ideal frame, in which all are equal.

    No C vectors can be farther apart than a simplex ETF's, whose cosines are all -1/(C-1).
    """
    W = W.double()
    norms = W.norm(dim=1)
    unit = W / norms.clamp_min(torch.finfo(torch.float64).tiny)[:, None]
    return {"cosines": (unit @ unit.T).tolist(), "ideal": ideal_cosine(len(W)), "norms": norms.tolist()}


def ideal_cosine(classes: int) -> float | None:
    """The cosine between any two vectors of a simplex ETF."""
    return -1 / (classes - 1) if classes > 1 else None
