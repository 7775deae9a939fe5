"""The Dirichlet partition: each class is spread over the clients in proportions drawn from Dir(alpha).

A draw is repeated, up to 100 times, until every client has the minimum size. Where that does not help (with 100,000
clients it cannot), small clients of the last draw are topped up from the largest ones, each from one of them as far as
possible, so that what they get is itself Dirichlet-skewed. How many samples moved is part of the result.
"""

from __future__ import annotations

import numpy as np

from fedframe.data.source import Ints
from fedframe.errors import SettingError

MAX_DRAWS = 100
MAX_WORK = 20_000_000  # proportions drawn in total: bounds the time of redraws with many clients to seconds


def dirichlet(
    labels: Ints, clients: int, classes: int, alpha: float, min_size: int, rng: np.random.Generator
) -> tuple[Ints, tuple[str, ...]]:
    """Client of every row, and a note if samples had to be moved to meet the minimum size."""
    if clients * min_size > len(labels):
        few, small = len(labels) // min_size, len(labels) // clients
        raise SettingError(
            f"{clients} clients with at least {min_size} samples each need {clients * min_size} training samples, and "
            f"there are {len(labels)}: use at most {few} clients or min_size={small}."
        )
    draws = int(np.clip(MAX_WORK // (clients * classes), 1, MAX_DRAWS))
    for _ in range(draws):
        owner = _draw(labels, clients, classes, alpha, rng)
        sizes = np.bincount(owner, minlength=clients)
        if sizes.min() >= min_size:
            return owner, ()
    small = int((sizes < min_size).sum())
    moved = _top_up(owner, sizes, min_size, rng)
    return owner, (
        f"dirichlet:{alpha:g} left {small} of {clients} clients with fewer than {min_size} samples in each of {draws} "
        f"draws; {moved} samples ({moved / len(labels):.1%}) moved to them from the largest clients.",
    )


def _draw(labels: Ints, clients: int, classes: int, alpha: float, rng: np.random.Generator) -> Ints:
    """One draw, class by class: a dense clients x classes matrix is never needed."""
    shuffled = rng.permutation(len(labels))
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    counts = np.bincount(labels, minlength=classes)
    owner = np.empty(len(labels), np.int64)
    start = 0
    for count in counts.tolist():
        if count:
            share = rng.dirichlet(np.full(clients, alpha))
            cuts = np.floor(np.cumsum(share)[:-1] * count + 0.5)
            owner[order[start : start + count]] = np.searchsorted(cuts, np.arange(count), side="right")
        start += count
    return owner


def _top_up(owner: Ints, sizes: Ints, min_size: int, rng: np.random.Generator) -> int:
    """Move samples in place until every client has min_size; give the number of samples moved."""
    need = np.maximum(0, min_size - sizes)
    total = int(need.sum())
    gives = _tops(sizes, min_size, total)
    # The rows that leave: the first gives[k] of client k's rows in random order.
    shuffled = rng.permutation(len(owner))
    order = shuffled[np.argsort(owner[shuffled], kind="stable")]
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    leaving = order[rank < gives[owner[order]]]  # one giver behind the other
    receivers = rng.permutation(np.flatnonzero(need))
    owner[leaving] = np.repeat(receivers, need[receivers])
    return total


def _tops(sizes: Ints, floor: int, total: int) -> Ints:
    """How many samples each client gives: the tops above one common level, which is never below the floor."""
    low, high = floor, int(sizes.max())
    while low < high:  # the highest level whose tops suffice
        level = (low + high + 1) // 2
        if int(np.maximum(0, sizes - level).sum()) >= total:
            low = level
        else:
            high = level - 1
    gives = np.maximum(0, sizes - low)
    spare = (
        int(gives.sum()) - total
    )  # less than the number of givers: at level low + 1 the tops did not suffice
    gives[np.flatnonzero(gives)[:spare]] -= 1
    return gives
