"""Drawing rows class by class: held-out test sets, local test sets, long tails and smaller training sets.

How many samples of each class go to a test set follows the largest remainder rule, for many clients at once. A class
with n_c of a client's n samples has the quota q_c = T * n_c / n of T test samples. Each class gets the whole part of
q_c; what is left goes to the largest remainders. Equivalently, the j-th sample of class c (counted from 0) has the
priority q_c - j, and the T samples with the highest priority are taken: that form sorts the candidates of all clients
at once.
"""

from __future__ import annotations

import numpy as np
import torch

from fedframe.data.ragged import Ragged, grouped
from fedframe.data.source import Ints, Samples
from fedframe.errors import SettingError


def largest_remainder(client: Ints, label: Ints, count: Ints, cap: Ints, target: Ints, classes: int) -> Ints:
    """Seats per group, where a group is the samples of one class at one client.

    client, label, count, cap: one entry per group (count > 0), sorted by client; cap is the most a group can
    give. target: samples wanted per client (K,). Where the target reaches the number of groups that can give
    at all, each of them gets one. Equal remainders go to class (client + i) mod C with the smallest i, so
    that no class is favoured over the clients.
    """
    total = np.bincount(client, weights=count, minlength=len(target)).astype(np.int64)
    able = np.bincount(client, weights=cap > 0, minlength=len(target)).astype(np.int64)
    all_represented = target >= able

    group = np.repeat(np.arange(len(client)), cap)  # the candidate seats
    first = np.cumsum(cap) - cap
    seat = np.arange(len(group)) - first[group]
    owner = client[group]
    # (q_c - j) * n in whole numbers: no rounding decides a tie.
    owed = target[owner] * count[group] - seat * total[owner]
    reserved = (seat == 0) & all_represented[owner]
    turn = (label[group] - owner) % classes
    order = np.lexsort((turn, -owed, ~reserved, owner))

    candidates = np.bincount(owner, minlength=len(target))
    rank = np.arange(len(order)) - np.repeat(np.cumsum(candidates) - candidates, candidates)
    taken = order[rank < target[owner[order]]]
    return np.bincount(group[taken], minlength=len(client)).astype(np.int64)


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


def tail_counts(counts: Ints, imbalance: float) -> Ints:
    """Samples that class c keeps: n_max * IF^(-c / (C - 1)), rounded, at least 1.

    n_max is the size of the smallest class, so that every class can deliver its share.
    """
    last = max(1, len(counts) - 1)
    wanted = counts.min() * imbalance ** (-np.arange(len(counts)) / last)
    keep: Ints = np.maximum(1, np.floor(wanted + 0.5)).astype(np.int64)
    return keep


def long_tail(labels: Ints, classes: tuple[str, ...], imbalance: float, rng: np.random.Generator) -> Ints:
    """Rows that stay, in rising order; which ones of a class is drawn."""
    counts = np.bincount(labels, minlength=len(classes))
    if counts.min() == 0:
        missing = classes[int(counts.argmin())]
        raise SettingError(f"longtail needs training samples of every class, and class {missing!r} has none.")
    return draw_by_class(labels, counts, tail_counts(counts, imbalance), rng)


def draw_by_class(labels: Ints, counts: Ints, keep: Ints, rng: np.random.Generator) -> Ints:
    """Rows that stay, in rising order: keep[c] of the counts[c] rows of class c."""
    shuffled = rng.permutation(len(labels))
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(order[rank < keep[labels[order]]])


def keep_share(samples: Samples, classes: int, share: float, rng: np.random.Generator) -> Samples:
    """These samples, or a share of them if it is below 1."""
    if share == 1:
        return samples
    rows = rows_of_share(samples.y.numpy(), samples.user, classes, share, rng)
    return samples.subset(torch.from_numpy(rows))


def rows_of_share(labels: Ints, users: Ints | None, classes: int, share: float, rng: np.random.Generator) -> Ints:
    """Rows that stay, in rising order: share * n of them (rounded), each class by its size (largest remainder).

    At least one sample of every class stays and, where the data name users, at least one of every user: neither a
    class nor a client may vanish with the data.
    """
    counts = np.bincount(labels, minlength=classes)
    present = np.flatnonzero(counts)
    total = max(len(present), int(share * len(labels) + 0.5))
    one_owner: Ints = np.zeros(len(present), np.int64)
    keep: Ints = np.zeros(classes, np.int64)
    keep[present] = largest_remainder(one_owner, present, counts[present], counts[present], np.array([total]), classes)
    rows = draw_by_class(labels, counts, keep, rng)
    if users is None:
        return rows
    lost = np.setdiff1d(users, users[rows])
    shuffled = rng.permutation(len(users))
    _, first = np.unique(users[shuffled], return_index=True)  # a random row of every user, users in rising order
    everyone = np.unique(users)
    return np.sort(np.concatenate([rows, shuffled[first[np.isin(everyone, lost)]]]))
