"""The Dirichlet partition: each class is spread over the clients in proportions drawn from Dir(alpha).

A draw is repeated, up to 100 times, until every client has the minimum size. Where that does not help (with
100,000 clients it cannot), small clients of the last draw are topped up from larger ones, each from a single
one as far as possible, so that the samples they receive are Dirichlet-skewed too. A note says how many samples moved.

Capped (Li et al., Federated Learning on Non-IID Data Silos, 2022, and much public code since): class by class, only
clients that hold fewer than N/K samples take part. The authors set the shares of the others to zero and divide the rest
by its sum; that is a Dirichlet draw over the remaining clients.
"""

from __future__ import annotations

import numpy as np

from fedframe.data.source import Ints
from fedframe.data.stratified import shuffle_by_label
from fedframe.errors import SettingError

MAX_DRAWS = 100
MAX_WORK = 20_000_000  # proportions drawn in total: limits redraws with many clients to seconds


def dirichlet(
    labels: Ints,
    clients: int,
    classes: int,
    alpha: float,
    min_size: int,
    rng: np.random.Generator,
    capped: bool = False,
) -> tuple[Ints, tuple[str, ...]]:
    """The client of every row, and a note if samples had to be moved to meet the minimum size."""
    if clients * min_size > len(labels):
        few, small = len(labels) // min_size, len(labels) // clients
        fewer = f"at most {few} clients or " if few else ""
        raise SettingError(
            f"{clients} clients with at least {min_size} samples each need {clients * min_size} training "
            f"samples, and there are {len(labels)}: use {fewer}a minimum client size of {small}."
        )
    draws = int(np.clip(MAX_WORK // (clients * classes), 1, MAX_DRAWS))
    for _ in range(draws):
        owner = _draw(labels, clients, classes, alpha, rng, capped)
        sizes = np.bincount(owner, minlength=clients)
        if sizes.min() >= min_size:
            return owner, ()
    small = int((sizes < min_size).sum())
    moved = _top_up(owner, sizes, min_size, rng)
    return owner, (
        f"dirichlet:{alpha:g}{':capped' if capped else ''}: after {draws} draws {small} of {clients} clients had fewer "
        f"than {min_size} samples; {moved} samples ({moved / len(labels):.1%}) moved to them from larger clients.",
    )


def _draw(labels: Ints, clients: int, classes: int, alpha: float, rng: np.random.Generator, capped: bool) -> Ints:
    """One draw, class by class: a dense clients x classes matrix is never needed."""
    order = shuffle_by_label(labels, rng)
    counts = np.bincount(labels, minlength=classes)
    owner = np.empty(len(labels), np.int64)
    sizes: Ints = np.zeros(clients, np.int64)
    takers: Ints = np.arange(clients)
    start = 0
    for count in counts.tolist():
        if count:
            if capped:
                # Never empty: as long as a class is left, not every client can have its N/K.
                takers = np.flatnonzero(sizes * clients < len(labels))
            share = rng.dirichlet(np.full(len(takers), alpha))
            cuts = np.floor(np.cumsum(share)[:-1] * count + 0.5)
            here = takers[np.searchsorted(cuts, np.arange(count), side="right")]
            owner[order[start : start + count]] = here
            if capped:
                sizes += np.bincount(here, minlength=clients)
        start += count
    return owner


def _top_up(owner: Ints, sizes: Ints, min_size: int, rng: np.random.Generator) -> int:
    """Move samples in place until every client has min_size; return the number of samples moved."""
    need = np.maximum(0, min_size - sizes)
    receivers = rng.permutation(np.flatnonzero(need))
    # Every client offers its surplus in blocks of min_size; a receiver draws one block, and so has one donor.
    blocks = rng.permutation(np.repeat(np.arange(len(sizes)), np.maximum(0, sizes - min_size) // min_size))
    blocks = blocks[: len(receivers)]
    served, rest = receivers[: len(blocks)], receivers[len(blocks) :]
    donated = np.bincount(blocks, weights=need[served], minlength=len(sizes)).astype(np.int64)
    _move(owner, sizes, donated, served[np.argsort(blocks, kind="stable")], need, rng)
    if len(rest):  # too few blocks: take from the largest clients, each receiver from several donors
        sizes = np.bincount(owner, minlength=len(sizes))
        _move(owner, sizes, _donations(sizes, min_size, int(need[rest].sum())), rest, need, rng)
    return int(need.sum())


def _move(owner: Ints, sizes: Ints, donated: Ints, receivers: Ints, need: Ints, rng: np.random.Generator) -> None:
    """Move donated[k] random rows of each client k, donor by donor, to the receivers in their order."""
    order = shuffle_by_label(owner, rng)
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    leaving = order[rank < donated[owner[order]]]
    owner[leaving] = np.repeat(receivers, need[receivers])


def _donations(sizes: Ints, floor: int, total: int) -> Ints:
    """How many samples each client donates: what exceeds one common level, which is never below the floor."""
    low, high = floor, int(sizes.max())
    while low < high:  # find the highest level whose excess suffices
        level = (low + high + 1) // 2
        if int(np.maximum(0, sizes - level).sum()) >= total:
            low = level
        else:
            high = level - 1
    donated = np.maximum(0, sizes - low)
    spare = int(donated.sum()) - total  # less than the number of donors: the excess over level low + 1 did not suffice
    donated[np.flatnonzero(donated)[:spare]] -= 1
    return donated
