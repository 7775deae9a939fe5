"""Features of a backbone that is frozen, computed once and kept: what follows it trains and predicts on them.

A feature depends on its sample alone where the backbone neither learns nor does anything at random, and nothing is done
to samples before it. All features of a client are computed together, in the batches of evaluation, so that none depends
on who computes it, or on which batch asks for it first: runs have the same bits with any number of processes. (Training
without the cache would compute a sample in other batches, whose arithmetic may round otherwise in the last bit.)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from fedframe.core.job import Job

MOST_BYTES = 1 << 30  # of one process; beyond that features are computed each time
Compute = Callable[[], Tensor]


def caches_features(job: Job) -> bool:
    """Whether features of a sample are the same in every batch of the run."""
    whole = job.template.frozen == ("backbone",) and not job.template.adapters
    return whole and job.settings.augment == "none" and not job.method.parts_with("begin_batch")


class FeatureCache:
    """Features as they leave the backbone, by client for training samples and by test set for others."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.kept: dict[Hashable, Tensor] = {}
        self.bytes = 0

    def of(self, key: Hashable, compute: Compute) -> Tensor:
        """All features of a set of samples, computed when they are first asked for."""
        found = self.kept.get(key)
        if found is not None:
            return found
        found = compute()
        if self.bytes + found.nbytes <= MOST_BYTES:
            self.kept[key] = found
            self.bytes += found.nbytes
        return found

    def batch(self, client: int, rows: Tensor, compute: Compute) -> Tensor | None:
        """Features of some of a client's training samples; None if they are not all its own.

        `compute` computes those of all its samples, in their order.
        """
        own = self.job.federation.train[client]
        too_many = self.bytes + 4 * len(own) * self.job.template.dim > MOST_BYTES and client not in self.kept
        if not len(own) or too_many:
            return None
        order = self.of(("order", client), lambda: torch.argsort(own))
        places = torch.searchsorted(own[order], rows).clamp_(max=len(own) - 1)
        found = order[places]
        if not torch.equal(own[found], rows):
            return None
        features = self.of(client, compute)
        return features[found.to(features.device)]
