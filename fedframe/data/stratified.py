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


def shuffle_by_label(labels: Ints, rng: np.random.Generator) -> Ints:
    """All rows sorted by label, in random order within a label."""
    shuffled = rng.permutation(len(labels))
    return shuffled[np.argsort(labels[shuffled], kind="stable")]


def largest_remainder(client: Ints, label: Ints, count: Ints, cap: Ints, target: Ints, classes: int) -> Ints:
    """Number of test samples per group, where a group is the samples of one class at one client.

    client, label, count, cap: one entry per group (count > 0), sorted by client; cap limits what is taken from a
    group. target: test samples per client (K,). Where the target reaches the number of groups with a cap above 0, each
    of them contributes at least one. Ties go to class (client + i) mod C with the smallest i, so that over the clients
    no class is favoured.
    """
    total = np.bincount(client, weights=count, minlength=len(target)).astype(np.int64)
    available = np.bincount(client, weights=cap > 0, minlength=len(target)).astype(np.int64)
    all_represented = target >= available

    group = np.repeat(np.arange(len(client)), cap)  # the group of every candidate sample
    first = np.cumsum(cap) - cap
    index = np.arange(len(group)) - first[group]
    owner = client[group]
    # (q_c - j) * n in whole numbers, so that rounding decides no tie.
    priority = target[owner] * count[group] - index * total[owner]
    reserved = (index == 0) & all_represented[owner]
    tie_break = (label[group] - owner) % classes
    order = np.lexsort((tie_break, -priority, ~reserved, owner))

    candidates = np.bincount(owner, minlength=len(target))
    rank = np.arange(len(order)) - np.repeat(np.cumsum(candidates) - candidates, candidates)
    taken = order[rank < target[owner[order]]]
    return np.bincount(group[taken], minlength=len(client)).astype(np.int64)


def held_out_mask(
    owner: Ints,
    labels: Ints,
    clients: int,
    classes: int,
    share: float,
    rng: np.random.Generator,
    group: Ints | None = None,
) -> Ints:
    """A mask of the rows that leave the training data for a test set; rows with owner -1 belong to no client.

    Rows of a client's group, such as a patient, leave together, and count as one with the label of the first.

    A client with n samples gives share * n (rounded; at least 1 if n > 1 and share > 0). No class gives more than its
    quota rounded up, and each keeps a training sample: a class with a single sample is trained on, never tested on.
    """
    if group is not None:
        _, first, unit = np.unique(np.stack([owner, group]), axis=1, return_index=True, return_inverse=True)
        return held_out_mask(owner[first], labels[first], clients, classes, share, rng)[unit.ravel()]
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
    taken = largest_remainder(client, groups % classes, count, cap, target, classes)
    rank = np.arange(len(rows)) - np.repeat(start, count)
    mask = np.zeros(len(owner), bool)
    mask[rows[rank < np.repeat(taken, count)]] = True
    return mask


def draw_from_global(
    owner: Ints, labels: Ints, pool: Ints, clients: int, classes: int, rng: np.random.Generator
) -> Ragged:
    """A local test set for every client, as rows of the global test set; pool holds the labels of the latter.

    It follows the client's label distribution as closely as whole samples allow. A client with n training samples gets
    n test samples or, if the pool has too few of a class, as many as its scarcest class allows. No row occurs twice in
    a client's set; two clients may share rows.
    """
    rows = np.flatnonzero(owner >= 0)
    groups, count = np.unique(owner[rows] * classes + labels[rows], return_counts=True)
    client, label = groups // classes, groups % classes
    stock = np.bincount(pool, minlength=classes)
    in_pool = stock[label] > 0  # a class that is missing from the pool cannot be tested
    client, label, count = client[in_pool], label[in_pool], count[in_pool]
    target = np.bincount(client, weights=count, minlength=clients).astype(np.int64)
    limit = stock[label] * target[client] // count  # T * n_c / n <= stock
    np.minimum.at(target, client, limit)
    taken = largest_remainder(client, label, count, np.minimum(count, stock[label]), target, classes)

    # Every class of the pool has one random order, of which a client takes a cyclic run from a random start.
    order = shuffle_by_label(pool, rng)
    begin = (np.cumsum(stock) - stock)[label]
    start = rng.integers(stock[label])
    step = np.arange(taken.sum()) - np.repeat(np.cumsum(taken) - taken, taken)
    place = np.repeat(begin, taken) + (np.repeat(start, taken) + step) % np.repeat(stock[label], taken)
    return grouped(np.repeat(client, taken), order[place], clients)


def long_tail_counts(counts: Ints, imbalance: float) -> Ints:
    """Class sizes of a long-tailed set: class c keeps n_max * IF^(-c / (C - 1)) samples, cut off, at least 1.

    n_max is the size of the smallest class, so that every class has enough samples. Fractions are cut off as by Cao et
    al. (Learning Imbalanced Datasets with LDAM, 2019), whose CIFAR-100-LT with IF 100 has 10,847 samples.
    """
    last = max(1, len(counts) - 1)
    wanted = counts.min() * imbalance ** (-np.arange(len(counts)) / last)
    # What is a whole number but for rounding (49.999999999 of 50) counts as one.
    keep: Ints = np.maximum(1, np.floor(wanted * (1 + 1e-12))).astype(np.int64)
    return keep


def long_tail_rows(labels: Ints, classes: tuple[str, ...], imbalance: float, rng: np.random.Generator) -> Ints:
    """The rows of a long-tailed subset, in rising order: sizes fall exponentially from the first class to the last."""
    counts = np.bincount(labels, minlength=len(classes))
    if counts.min() == 0:
        missing = classes[int(counts.argmin())]
        raise SettingError(f"longtail needs training samples of every class, and class {missing!r} has none.")
    return draw_per_class(labels, counts, long_tail_counts(counts, imbalance), rng)


def draw_per_class(labels: Ints, counts: Ints, keep: Ints, rng: np.random.Generator) -> Ints:
    """Draw keep[c] of the counts[c] rows of every class c; in rising order."""
    order = shuffle_by_label(labels, rng)
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(order[rank < keep[labels[order]]])


def subsample(samples: Samples, classes: int, share: float, rng: np.random.Generator) -> Samples:
    """A smaller set of the same shape: the same share of every class.

    What runs on a small machine is then the paper's task with less data, not another task: a balanced set stays
    balanced and a long tail keeps its form.
    """
    if share == 1:
        return samples
    rows = subsample_rows(samples.y.numpy(), samples.user, classes, share, rng)
    return samples.subset(torch.from_numpy(rows))


def subsample_rows(labels: Ints, users: Ints | None, classes: int, share: float, rng: np.random.Generator) -> Ints:
    """Draw share * n rows (rounded), each class in proportion to its size (largest remainder); in rising order.

    At least one sample of every class is kept and, where the data name users, at least one of every user, so that
    neither a class nor a client vanishes.
    """
    counts = np.bincount(labels, minlength=classes)
    present = np.flatnonzero(counts)
    total = max(len(present), int(share * len(labels) + 0.5))
    one_client: Ints = np.zeros(len(present), np.int64)
    keep: Ints = np.zeros(classes, np.int64)
    keep[present] = largest_remainder(one_client, present, counts[present], counts[present], np.array([total]), classes)
    rows = draw_per_class(labels, counts, keep, rng)
    if users is None:
        return rows
    lost = np.setdiff1d(users, users[rows])
    shuffled = rng.permutation(len(users))
    _, first = np.unique(users[shuffled], return_index=True)  # a random row of every user, users in rising order
    all_users = np.unique(users)
    return np.sort(np.concatenate([rows, shuffled[first[np.isin(all_users, lost)]]]))
