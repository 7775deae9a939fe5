"""Features of some samples, batch by batch, as prediction has them."""

from __future__ import annotations

import torch
from torch import Tensor

from fedframe.core.batches import plain_batches
from fedframe.core.job import Job
from fedframe.core.model import Model
from fedframe.data import Samples


@torch.no_grad()
def embeddings(job: Job, model: Model, samples: Samples, rows: Tensor) -> Tensor:
    """What reaches the classifier, (rows, dim) in float32 on the CPU; evaluation mode, so that nothing moves."""
    model.eval()
    device = next(model.parameters()).device
    batches = plain_batches(job.federation.source, samples, rows, job.settings.eval_batch)
    found = [job.method.embed(model, inputs.to(device)).cpu() for inputs in batches]
    return torch.cat(found) if found else torch.empty(0, model.dim)


@torch.no_grad()
def classified(job: Job, model: Model, features: Tensor) -> Tensor:
    """The classes that the model predicts from what reaches its classifier."""
    device = next(model.parameters()).device
    parts = features.split(job.settings.eval_batch)  # type: ignore[no-untyped-call]
    found = [job.method.classify(model, part.to(device)).argmax(1).cpu() for part in parts]
    return torch.cat(found) if found else torch.empty(0, dtype=torch.int64)
