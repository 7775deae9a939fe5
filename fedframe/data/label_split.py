"""Partitions by counting: iid, a fixed number of classes per client, label-sorted shards."""

from __future__ import annotations

import numpy as np

from fedframe.data.source import Ints
from fedframe.errors import SettingError


def iid(rows: int, clients: int, rng: np.random.Generator) -> Ints:
    """Client of every row: shares differ by one sample at most."""
    return rng.permutation(rows) % clients


def shards(labels: Ints, clients: int, per_client: int, rng: np.random.Generator) -> Ints:
    """Client of every row: the label-sorted rows in clients * per_client shards, dealt at random."""
    count = clients * per_client
    if count > len(labels):
        raise SettingError(
            f"shards:{per_client} with {clients} clients cuts {count} shards from {len(labels)} training "
            f"samples: use at most {len(labels) // per_client} clients."
        )
    order = _by_label(labels, rng)
    bounds = np.arange(1, count) * len(labels) // count
    shard = np.searchsorted(bounds, np.arange(len(labels)), side="right")
    owner = np.empty(len(labels), np.int64)
    owner[order] = rng.permutation(count)[shard] // per_client
    return owner


def by_classes(labels: Ints, clients: int, classes: tuple[str, ...], held: int, rng: np.random.Generator) -> Ints:
    """Client of every row: each client holds `held` classes, each class is cut evenly among its holders."""
    counts = np.bincount(labels, minlength=len(classes))
    present = np.flatnonzero(counts)
    if held > len(present):
        raise SettingError(f"classes:{held}: the training data have only {len(present)} classes.")
    if clients * held < len(present):
        raise SettingError(
            f"classes:{held} with {clients} clients leaves some of the {len(present)} classes to nobody: use "
            f"at least {-(-len(present) // held)} clients."
        )
    hands = present[_deal(clients, len(present), held, rng)]  # (clients, held)
    # Holders of each class, one class behind the other, in random order: who gets a spare sample is chance.
    slots = rng.permutation(hands.size)
    slots = slots[np.argsort(hands.ravel()[slots], kind="stable")]
    holders = np.bincount(hands.ravel(), minlength=len(classes))
    short = np.flatnonzero(counts < holders)
    if len(short):
        c = int(short[0])
        at_most, at_least = int(counts[present].min()) * len(present) // held, -(-len(present) // held)
        advice = f"use at most {at_most} clients" if at_most >= at_least else "use a milder long tail, or dirichlet:0.1"
        raise SettingError(
            f"classes:{held} with {clients} clients: class {classes[c]!r} has {counts[c]} samples for "
            f"{holders[c]} holders: {advice}."
        )
    order = _by_label(labels, rng)
    starts = np.cumsum(counts) - counts
    label = labels[order]
    position = np.arange(len(labels)) - starts[label]
    piece = position * holders[label] // counts[label]  # which of the holders, pieces differ by one at most
    owner = np.empty(len(labels), np.int64)
    owner[order] = slots[(np.cumsum(holders) - holders)[label] + piece] // held
    return owner


def _deal(clients: int, classes: int, held: int, rng: np.random.Generator) -> Ints:
    """Which classes each client holds, (clients, held): distinct in a hand, holders per class differ by one.

    Dealing the classes round and round gives balanced hands, but few different ones. Random swaps between
    pairs of clients, refused where a hand would hold a class twice, keep the balance and mix the hands.
    """
    hands = (rng.permutation(classes)[np.arange(clients * held) % classes]).reshape(clients, held)
    pairs = clients // 2
    for _ in range(10 * held + 20):
        meet = rng.permutation(clients)
        a, b = meet[:pairs], meet[pairs : 2 * pairs]
        i, j = rng.integers(held, size=(2, pairs))
        give, take = hands[a, i], hands[b, j]
        fits = ~((hands[b] == give[:, None]).any(1) | (hands[a] == take[:, None]).any(1))
        hands[a[fits], i[fits]] = take[fits]
        hands[b[fits], j[fits]] = give[fits]
    return hands


def _by_label(labels: Ints, rng: np.random.Generator) -> Ints:
    """Rows sorted by label, in random order inside a label."""
    shuffled = rng.permutation(len(labels))
    return shuffled[np.argsort(labels[shuffled], kind="stable")]
