"""A long-tailed training set: class sizes fall exponentially from the first class to the last."""

from __future__ import annotations

import numpy as np

from fedframe.data.source import Ints
from fedframe.errors import SettingError


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
