"""A smaller training set of the same shape: the same share of every class, drawn by the seed.

What runs on a small machine is then the paper's task with less data, not another task: a balanced set stays balanced
and a long tail keeps its form, because every class shrinks by the same factor.
"""

from __future__ import annotations

import numpy as np
import torch

from fedframe.data.largest_remainder import largest_remainder
from fedframe.data.longtail import draw_by_class
from fedframe.data.source import Ints, Samples


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
