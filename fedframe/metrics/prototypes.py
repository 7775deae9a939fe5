"""Prototype consistency: how similar clients' mean features of the same class are.

A client's prototype of class c is the mean feature of its samples of c (FedProto, Tan et al., 2022, Eq. 3). The measure
is the mean cosine between the prototypes of one class at two clients, over all pairs of clients that hold it and then
over classes. Cosines are taken around the mean of all classes: features after a ReLU all lie in one orthant, so
that without centring even different classes would look similar.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedframe.core.job import Job
from fedframe.core.model import Model
from fedframe.metrics.classifier import embeddings
from fedframe.metrics.collapse import class_means
from fedframe.metrics.sampling import sample_rows


def prototype_consistency(job: Job, models: Iterable[tuple[int, Model]], each: int, seed: int) -> float | None:
    """Similarity of clients' class means, each of at most `each` training samples under the client's model.

    The models may be one net that is reloaded for every client: they are used one at a time.
    """
    train, means, held = job.federation.source.train, [], []
    for client, model in models:
        rows = sample_rows(job.federation.train[client], each, seed, f"prototypes/{client}")
        found, counts = class_means(embeddings(job, model, train, rows), train.y[rows], model.classes)
        means.append(found)
        held.append(counts > 0)
    return consistency(torch.stack(means), torch.stack(held)) if len(means) > 1 else None


def consistency(prototypes: Tensor, held: Tensor) -> float | None:
    """1 where all clients agree; prototypes (clients, classes, dim), held (clients, classes).

    None if no class is held by two clients, or there is only one class.
    """
    held = held.bool()
    wide = prototypes.double() * held[:, :, None]
    holders = held.sum(0)
    seen = holders > 0
    if int(seen.sum()) < 2:
        return None
    centre = (wide.sum(0)[seen] / holders[seen, None]).mean(0)
    away = (wide - centre) * held[:, :, None]
    norms = away.norm(dim=2)
    counted = norms > 0
    unit = away / norms.clamp_min(torch.finfo(torch.float64).tiny)[:, :, None]
    m = counted.sum(0).double()
    pairs = m * (m - 1)
    # The cosines of all pairs of unit vectors add up to the squared length of their sum, less that of each with itself.
    cosines = (unit.sum(0).square().sum(1) - m)[pairs > 0] / pairs[pairs > 0]
    return float(cosines.mean()) if len(cosines) else None
