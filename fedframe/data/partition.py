"""Who gets which training sample: specs like longtail:100+dirichlet:0.5, and the partitions that only count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedframe.data.dirichlet import dirichlet
from fedframe.data.source import Ints, Source
from fedframe.data.stratified import long_tail
from fedframe.errors import SettingError, nearest
from fedframe.util.seeds import numpy_generator_for

PARTITIONS: dict[str, str] = {
    "iid": "every client gets an equal, random share of the data",
    "dirichlet:0.1": "each class is spread over the clients by Dir(0.1): smaller numbers, more disagreement",
    "classes:5": "every client holds exactly 5 classes; a class is cut evenly among its holders",
    "shards:2": "sort by label, cut into 2 shards per client, deal them out at random",
    "user": "the natural clients of the data: writers, hospitals, photographers",
    "longtail:100+...": "in front of any other: class sizes fall by a factor of 100 from first to last",
}


@dataclass(frozen=True)
class Task:
    """What a partition may look at; rows are those of the (long-tailed) training set."""

    labels: Ints  # (n,)
    clients: int
    classes: tuple[str, ...]
    rng: np.random.Generator
    min_size: int
    value: float  # the number behind the colon


@dataclass(frozen=True)
class Split:
    """Client of every training row (-1: nobody's), how many clients, and what the user should know."""

    owner: Ints
    clients: int
    notes: tuple[str, ...] = ()
    users: Ints | None = None  # natural client behind every client


Scheme = Callable[[Task], tuple[Ints, tuple[str, ...]]]


def _iid(task: Task) -> tuple[Ints, tuple[str, ...]]:
    return iid(len(task.labels), task.clients, task.rng), ()


def _dirichlet(task: Task) -> tuple[Ints, tuple[str, ...]]:
    return dirichlet(task.labels, task.clients, len(task.classes), task.value, task.min_size, task.rng)


def _classes(task: Task) -> tuple[Ints, tuple[str, ...]]:
    return by_classes(task.labels, task.clients, task.classes, int(task.value), task.rng), ()


def _shards(task: Task) -> tuple[Ints, tuple[str, ...]]:
    return shards(task.labels, task.clients, int(task.value), task.rng), ()


# name -> (scheme, example of its number; None: takes none, whole numbers only)
_SCHEMES: dict[str, tuple[Scheme | None, str | None, bool]] = {
    "iid": (_iid, None, False),
    "dirichlet": (_dirichlet, "0.1", False),
    "classes": (_classes, "5", True),
    "shards": (_shards, "2", True),
    "user": (None, None, False),
}


@dataclass(frozen=True)
class PartitionSpec:
    """A partition spec taken apart."""

    scheme: str
    value: float = 0.0
    imbalance: float | None = None  # the long tail's factor, if asked for


def read_partition(text: str) -> PartitionSpec:
    """Take a spec apart; a SettingError says what is wrong with it."""
    parts = text.strip().split("+")
    imbalance = None
    if parts[0].partition(":")[0] == "longtail":
        imbalance = _number(parts.pop(0), "100", whole=False)
        if imbalance < 1:
            raise SettingError(f"partition {text!r}: the long tail's factor must be at least 1, e.g. longtail:100.")
        if not parts:
            raise SettingError(f"partition {text!r} says how many samples stay but not who gets them: {text}+iid.")
    if len(parts) > 1:
        raise SettingError(
            f"partition {text!r} joins two partitions; only longtail can stand in front of one, "
            "e.g. longtail:100+dirichlet:0.5."
        )
    name = parts[0].partition(":")[0]
    if name not in _SCHEMES:
        raise SettingError(f"partition {name!r} is unknown: {nearest(name, [*_SCHEMES, 'longtail'])}")
    _, example, whole = _SCHEMES[name]
    if example is None:
        if ":" in parts[0]:
            raise SettingError(f"partition {name!r} takes no number: write {name} instead of {parts[0]}.")
        return PartitionSpec(name, imbalance=imbalance)
    return PartitionSpec(name, _number(parts[0], example, whole), imbalance)


def _number(part: str, example: str, whole: bool) -> float:
    """The number behind the colon."""
    name, _, text = part.partition(":")
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not (value > 0 and np.isfinite(value)) or (whole and value != int(value)):
        kind = "a whole number above 0" if whole else "a number above 0"
        raise SettingError(f"partition {part!r} needs {kind} behind {name}, e.g. {name}:{example}.")
    return value


def split(source: Source, partition: str, clients: int | None, seed: int, min_size: int) -> Split:
    """Give every training row its client."""
    spec = read_partition(partition)
    scheme = _SCHEMES[spec.scheme][0]
    if clients is not None and clients < 1:
        raise SettingError(f"clients is {clients}; it must be at least 1, e.g. clients=10.")
    if min_size < 1:
        raise SettingError(f"min_size is {min_size}; it must be at least 1, e.g. min_size=10.")
    labels = source.train.y.numpy()
    rows = np.arange(len(labels))
    if spec.imbalance is not None:
        rows = long_tail(labels, source.classes, spec.imbalance, numpy_generator_for(seed, "longtail"))
    owner = np.full(len(labels), -1, np.int64)
    if scheme is None:
        owner[rows], users = _by_user(source, rows, clients, numpy_generator_for(seed, "user"))
        return Split(owner, len(users), users=users)
    if clients is None:
        raise SettingError(f"partition {partition!r} needs a number of clients, e.g. clients=10.")
    if len(rows) < clients:
        raise SettingError(
            f"clients is {clients}, but there are only {len(rows)} training samples: use at most {len(rows)} clients."
        )
    rng = numpy_generator_for(seed, spec.scheme)
    task = Task(labels[rows], clients, source.classes, rng, min_size, spec.value)
    owner[rows], notes = scheme(task)
    return Split(owner, clients, notes)


def _by_user(source: Source, rows: Ints, clients: int | None, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Client of every row and user of every client; fewer clients than users are picked by the seed."""
    if source.train.user is None:
        raise SettingError(
            f"partition 'user' needs natural clients, and {source.name!r} has none: use dirichlet:0.1, or "
            "data with users (femnist, a client column in csv, user_train in npz)."
        )
    users, index = np.unique(source.train.user[rows], return_inverse=True)
    if clients is None or clients == len(users):
        return index.astype(np.int64), users
    if clients > len(users):
        raise SettingError(
            f"clients is {clients}, but {source.name!r} has {len(users)} natural clients with training data: "
            f"use at most {len(users)}, or leave clients away."
        )
    chosen = np.sort(rng.choice(len(users), clients, replace=False))
    number = np.full(len(users), -1, np.int64)
    number[chosen] = np.arange(clients)
    return number[index], users[chosen]


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
