"""Bounded, reproducible draws of samples and clients: measures use the same ones every time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedframe.core.model import Model
from fedframe.util.seeds import generator_for, seed_for

MOST_BYTES = 64 << 20  # of one vector per client and class, in float64


def sample_rows(rows: Tensor, most: int, seed: int, purpose: str) -> Tensor:
    """At most `most` of the rows, drawn uniformly; in their order."""
    if len(rows) <= most:
        return rows
    chosen = torch.randperm(len(rows), generator=generator_for(seed, "measure", purpose))[:most]
    return rows[chosen.sort().values]


def balanced_rows(rows: Tensor, labels: Tensor, most: int, seed: int, purpose: str) -> Tensor:
    """At most `most` of the rows, as evenly over the classes as possible: small classes are taken whole."""
    if len(rows) <= most or not len(rows):
        return rows
    shuffled = torch.randperm(len(rows), generator=generator_for(seed, "measure", purpose))
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    sizes = torch.bincount(labels)
    starts = sizes.cumsum(0) - sizes
    rank = torch.arange(len(rows)) - starts[labels[by_class]]  # position within its class
    chosen = by_class[rank.argsort(stable=True)[:most]]  # the first of every class, then the second, ...
    return rows[chosen.sort().values]


def sample_clients(clients: Sequence[int], most: int, seed: int) -> list[int]:
    """At most `most` of the clients: a client's rank does not depend on who else is in the round."""
    if len(clients) <= most:
        return list(clients)
    chosen = set(sorted(clients, key=lambda client: seed_for(seed, "measured", client))[:most])
    return [client for client in clients if client in chosen]


def affordable_clients(most: int, model: Model) -> int:
    """How many clients can be compared by a vector per class in bounded memory: at most `most`, at least two."""
    return max(2, min(most, MOST_BYTES // (8 * model.classes * model.dim)))
