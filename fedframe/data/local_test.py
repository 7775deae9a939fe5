"""A test set of each client's own: a held-out share of its data, or samples of the global test set.

Either follows the client's label distribution exactly as far as whole samples allow (largest remainder).
"""

from __future__ import annotations

import numpy as np

from fedframe.data.largest_remainder import largest_remainder
from fedframe.data.ragged import Ragged, grouped
from fedframe.data.source import Ints


def hold_out(owner: Ints, labels: Ints, clients: int, classes: int, share: float, rng: np.random.Generator) -> Ints:
    """Which rows leave the training data for a test set: a mask over rows; owner -1 is nobody's row.

    A client with n samples gives share * n (rounded; at least 1 if n > 1 and share > 0). No class gives more
    than its quota rounded up, and each keeps a training sample: a class with a single sample is trained on,
    never tested on.
    """
    rows = np.flatnonzero(owner >= 0)
    rows = rng.permutation(rows)
    key = owner[rows] * classes + labels[rows]
    order = np.argsort(key, kind="stable")
    rows, key = rows[order], key[order]
    groups, start, count = np.unique(key, return_index=True, return_counts=True)
    sizes = np.bincount(owner[rows], minlength=clients)
    target = np.floor(share * sizes + 0.5).astype(np.int64)
    if share > 0:
        target = np.clip(target, np.minimum(1, sizes - 1), sizes - 1)
    target = np.maximum(target, 0)
    client = groups // classes
    quota = -(-target[client] * count // np.maximum(1, sizes[client]))  # rounded up
    cap = np.minimum(count - 1, quota)
    seats = largest_remainder(client, groups % classes, count, cap, target, classes)
    rank = np.arange(len(rows)) - np.repeat(start, count)
    mask = np.zeros(len(owner), bool)
    mask[rows[rank < np.repeat(seats, count)]] = True
    return mask


def from_global(owner: Ints, labels: Ints, pool: Ints, clients: int, classes: int, rng: np.random.Generator) -> Ragged:
    """Rows of the global test set for every client; pool holds the labels of the global test set.

    A client with n training samples gets n test samples or, where a class of the pool is too small for that,
    as many as fit its scarcest class. Inside a client no row comes twice; two clients may share rows.
    """
    rows = np.flatnonzero(owner >= 0)
    groups, count = np.unique(owner[rows] * classes + labels[rows], return_counts=True)
    client, label = groups // classes, groups % classes
    stock = np.bincount(pool, minlength=classes)
    has = stock[label] > 0  # a class that the pool lacks cannot be tested
    client, label, count = client[has], label[has], count[has]
    target = np.bincount(client, weights=count, minlength=clients).astype(np.int64)
    fits = stock[label] * target[client] // count  # T * n_c / n <= stock
    np.minimum.at(target, client, fits)
    seats = largest_remainder(client, label, count, np.minimum(count, stock[label]), target, classes)

    # Every class of the pool in one random order; a client takes a run of it, from a random start, round the
    # end.
    shuffled = rng.permutation(len(pool))
    order = shuffled[np.argsort(pool[shuffled], kind="stable")]
    begin = (np.cumsum(stock) - stock)[label]
    start = rng.integers(stock[label])
    step = np.arange(seats.sum()) - np.repeat(np.cumsum(seats) - seats, seats)
    place = np.repeat(begin, seats) + (np.repeat(start, seats) + step) % np.repeat(stock[label], seats)
    return grouped(np.repeat(client, seats), order[place], clients)
