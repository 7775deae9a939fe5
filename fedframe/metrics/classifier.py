"""A method's classifier: the features that reach it, and the classifier itself as a matrix.

Whatever a method predicts with, logits = W h + b for the feature h that reaches the classifier.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedframe.core.batches import plain_batches
from fedframe.core.job import Job
from fedframe.core.method import Method
from fedframe.core.model import Model
from fedframe.data import Samples

AT_ONCE = 512  # features passed through the classifier together
TOLERANCE = 1e-3  # relative to the largest logit: how far a linear map may differ from the classifier


@torch.no_grad()
def embeddings(job: Job, model: Model, samples: Samples, rows: Tensor) -> Tensor:
    """Features of samples as they reach the classifier: (rows, dim), float32, on the CPU, in evaluation mode."""
    model.eval()
    device = next(model.parameters()).device
    batches = plain_batches(job.federation.source, samples, rows, job.settings.eval_batch)
    found = [job.method.embed(model, inputs.to(device)).cpu() for inputs in batches]
    return torch.cat(found) if found else torch.empty(0, model.dim)


@torch.no_grad()
def predict_classes(job: Job, model: Model, features: Tensor) -> Tensor:
    """The classes that the model predicts from features that reach its classifier."""
    device = next(model.parameters()).device
    parts = features.split(job.settings.eval_batch)  # type: ignore[no-untyped-call]
    found = [job.method.classify(model, part.to(device)).argmax(1).cpu() for part in parts]
    return torch.cat(found) if found else torch.empty(0, dtype=torch.int64)


@torch.no_grad()
def class_vectors(method: Method, model: Model) -> tuple[Tensor, Tensor] | None:
    """W (classes, dim) and b in float64, on the CPU; None for a classifier that is not linear.

    A plain linear head is read directly. The classifier of a part that predicts otherwise (a second head, a sum of two)
    is reconstructed from the logits of all unit vectors and checked on random ones.
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


def frame_statistics(W: Tensor) -> dict[str, float]:
    """FedLoGe's Table 6: mean and variance of the class vectors' norms, and of the angles of all pairs in degrees."""
    W = W.double()
    norms = W.norm(dim=1)
    unit = W / norms.clamp_min(torch.finfo(torch.float64).tiny)[:, None]
    upper = torch.ones(len(W), len(W), dtype=torch.bool).triu(1)
    angles = torch.rad2deg((unit @ unit.T)[upper].clamp(-1, 1).acos())
    return {
        "norm_mean": float(norms.mean()),
        "norm_variance": float(norms.var(correction=0)),
        "angle_mean": float(angles.mean()),
        "angle_variance": float(angles.var(correction=0)),
    }
