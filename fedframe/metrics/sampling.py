"""Bounded draws: what is measured on some samples or clients is measured on the same ones every time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedframe.core.model import Model
from fedframe.util.seeds import generator_for, seed_for

MOST_BYTES = 64 << 20  # of one vector per client and class, in float64


def sample_rows(rows: Tensor, most: int, seed: int, purpose: str) -> Tensor:
    """At most so many of the rows, every row equally likely; in their order."""
    if len(rows) <= most:
        return rows
    chosen = torch.randperm(len(rows), generator=generator_for(seed, "measure", purpose))[:most]
    return rows[chosen.sort().values]


def balanced_rows(rows: Tensor, labels: Tensor, most: int, seed: int, purpose: str) -> Tensor:
    """At most so many of the rows, as evenly over the classes as they allow: rare classes are taken whole first."""
    if len(rows) <= most or not len(rows):
        return rows
    shuffled = torch.randperm(len(rows), generator=generator_for(seed, "measure", purpose))
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    sizes = torch.bincount(labels)
    starts = sizes.cumsum(0) - sizes
    rank = torch.arange(len(rows)) - starts[labels[by_class]]  # the how-manieth of its class
    chosen = by_class[rank.argsort(stable=True)[:most]]  # the first of every class, then the second, ...
    return rows[chosen.sort().values]


def sample_clients(clients: Sequence[int], most: int, seed: int) -> list[int]:
    """At most so many of the clients: the same ones in every round they are in, whoever else is."""
    if len(clients) <= most:
        return list(clients)
    chosen = set(sorted(clients, key=lambda client: seed_for(seed, "measured", client))[:most])
    return [client for client in clients if client in chosen]


def affordable_clients(most: int, model: Model) -> int:
    """How many clients can be compared by a vector per class: at most so many, at least two, within bounded memory."""
    return max(2, min(most, MOST_BYTES // (8 * model.classes * model.dim)))
