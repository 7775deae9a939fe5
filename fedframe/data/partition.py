"""Who gets which training sample: specs like longtail:100+dirichlet:0.5, and the partitions that only count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedframe.data.dirichlet import dirichlet
from fedframe.data.source import Ints, Source
from fedframe.data.stratified import long_tail_rows, shuffle_by_label
from fedframe.errors import SettingError, nearest
from fedframe.util.seeds import numpy_generator_for

CAPPED = ":capped"  # behind dirichlet's number
PARTITIONS: dict[str, str] = {
    "iid": "every client gets an equal, random share of the data",
    "dirichlet:0.1": "each class is spread over the clients by Dir(0.1): smaller numbers, more disagreement",
    "dirichlet:0.1:capped": "the same, class by class among those clients alone that hold less than an equal share",
    "classes:5": "every client holds exactly 5 classes; a class is cut evenly among its holders",
    "shards:2": "sort by label, cut into 2 shards per client, assign them at random",
    "user": "the natural clients of the data: writers, hospitals, photographers",
    "longtail:100+...": "in front of any other: class sizes fall by a factor of 100 from first to last",
}


@dataclass(frozen=True)
class SchemeInput:
    """What a partition scheme may use; rows are those of the (long-tailed) training set."""

    labels: Ints  # (n,)
    clients: int
    classes: tuple[str, ...]
    rng: np.random.Generator
    min_size: int
    value: float  # the number after the colon
    capped: bool = False


@dataclass(frozen=True)
class Assignment:
    """The client of every training row (-1: none), the number of clients, and notes for the user."""

    owner: Ints
    clients: int
    notes: tuple[str, ...] = ()
    users: Ints | None = None  # the natural client that each client stands for


Scheme = Callable[[SchemeInput], tuple[Ints, tuple[str, ...]]]


def _iid(given: SchemeInput) -> tuple[Ints, tuple[str, ...]]:
    return split_iid(len(given.labels), given.clients, given.rng), ()


def _dirichlet(given: SchemeInput) -> tuple[Ints, tuple[str, ...]]:
    classes = len(given.classes)
    return dirichlet(given.labels, given.clients, classes, given.value, given.min_size, given.rng, capped=given.capped)


def _classes(given: SchemeInput) -> tuple[Ints, tuple[str, ...]]:
    return split_by_classes(given.labels, given.clients, given.classes, int(given.value), given.rng), ()


def _shards(given: SchemeInput) -> tuple[Ints, tuple[str, ...]]:
    return split_shards(given.labels, given.clients, int(given.value), given.rng), ()


# name -> (scheme, example of its number or None if it takes none, whether only whole numbers are allowed)
_SCHEMES: dict[str, tuple[Scheme | None, str | None, bool]] = {
    "iid": (_iid, None, False),
    "dirichlet": (_dirichlet, "0.1", False),
    "classes": (_classes, "5", True),
    "shards": (_shards, "2", True),
    "user": (None, None, False),
}


@dataclass(frozen=True)
class PartitionSpec:
    """A parsed partition spec."""

    scheme: str
    value: float = 0.0
    imbalance: float | None = None  # the long tail's factor, if there is one
    capped: bool = False  # a client that holds an equal share already gets no samples of further classes


def read_partition(text: str) -> PartitionSpec:
    """Parse a spec; a SettingError says what is wrong with it."""
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
    capped = name == "dirichlet" and parts[0].endswith(CAPPED)
    number = parts[0].removesuffix(CAPPED) if capped else parts[0]
    return PartitionSpec(name, _number(number, example, whole), imbalance, capped)


def _number(part: str, example: str, whole: bool) -> float:
    """The number after the colon."""
    name, _, text = part.partition(":")
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not (value > 0 and np.isfinite(value)) or (whole and value != int(value)):
        kind = "a whole number above 0" if whole else "a number above 0"
        raise SettingError(f"partition {part!r} needs {kind} behind {name}, e.g. {name}:{example}.")
    return value


def assign_clients(source: Source, partition: str, clients: int | None, seed: int, min_size: int) -> Assignment:
    """Assign every training row to a client."""
    spec = read_partition(partition)
    scheme = _SCHEMES[spec.scheme][0]
    if clients is not None and clients < 1:
        raise SettingError(f"clients is {clients}; it must be at least 1, e.g. clients=10.")
    if min_size < 1:
        raise SettingError(f"min_size is {min_size}; it must be at least 1, e.g. min_size=10.")
    labels = source.train.y.numpy()
    rows = np.arange(len(labels))
    if spec.imbalance is not None and source.target is not None:
        raise SettingError(
            f"partition {partition!r}: a long tail is about classes, and the task is {source.task}; leave longtail out."
        )
    if spec.imbalance is not None:
        rows = long_tail_rows(labels, source.classes, spec.imbalance, numpy_generator_for(seed, "longtail"))
    owner = np.full(len(labels), -1, np.int64)
    if scheme is None:
        owner[rows], users = _by_user(source, rows, clients, numpy_generator_for(seed, "user"))
        return Assignment(owner, len(users), users=users)
    if clients is None:
        raise SettingError(f"partition {partition!r} needs a number of clients, e.g. clients=10.")
    if len(rows) < clients:
        raise SettingError(
            f"clients is {clients}, but there are only {len(rows)} training samples: use at most {len(rows)} clients."
        )
    rng = numpy_generator_for(seed, spec.scheme)
    given = SchemeInput(labels[rows], clients, source.classes, rng, min_size, spec.value, spec.capped)
    owner[rows], notes = scheme(given)
    if source.target is not None and spec.scheme != "iid":
        notes = (*notes, strata_note(source, spec.scheme))
    return Assignment(owner, clients, notes)


def strata_note(source: Source, scheme: str) -> str:
    """What stands for classes in a partition by them, where none are learned."""
    if source.task == "regression":
        ranges = f"{len(source.classes)} ranges of {source.outputs[0]!r}"
        return f"{scheme} deals samples out by {ranges}, as if they were classes."
    return f"{scheme} deals samples out by the rarest label of each, as if that were its class."


def _by_user(source: Source, rows: Ints, clients: int | None, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """The client of every row and the user of every client; fewer clients than users are drawn by the seed."""
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


def split_iid(rows: int, clients: int, rng: np.random.Generator) -> Ints:
    """The client of every row: sizes differ by at most one sample."""
    return rng.permutation(rows) % clients


def split_shards(labels: Ints, clients: int, per_client: int, rng: np.random.Generator) -> Ints:
    """The client of every row: the label-sorted rows are cut into clients * per_client shards, assigned at random."""
    count = clients * per_client
    if count > len(labels):
        raise SettingError(
            f"shards:{per_client} with {clients} clients cuts {count} shards from {len(labels)} training "
            f"samples: use at most {len(labels) // per_client} clients."
        )
    order = shuffle_by_label(labels, rng)
    bounds = np.arange(1, count) * len(labels) // count
    shard = np.searchsorted(bounds, np.arange(len(labels)), side="right")
    owner = np.empty(len(labels), np.int64)
    owner[order] = rng.permutation(count)[shard] // per_client
    return owner


def split_by_classes(labels: Ints, clients: int, classes: tuple[str, ...], held: int, rng: np.random.Generator) -> Ints:
    """The client of every row: each client holds `held` classes, each class is divided evenly among its holders."""
    counts = np.bincount(labels, minlength=len(classes))
    present = np.flatnonzero(counts)
    if held > len(present):
        raise SettingError(f"classes:{held}: the training data have only {len(present)} classes.")
    if clients * held < len(present):
        raise SettingError(
            f"classes:{held} with {clients} clients leaves some of the {len(present)} classes to nobody: use "
            f"at least {-(-len(present) // held)} clients."
        )
    held_classes = present[_assign_classes(clients, len(present), held, rng)]  # (clients, held)
    # The holders of each class, class by class, in random order: which of them gets a surplus sample is random.
    slots = rng.permutation(held_classes.size)
    slots = slots[np.argsort(held_classes.ravel()[slots], kind="stable")]
    holders = np.bincount(held_classes.ravel(), minlength=len(classes))
    short = np.flatnonzero(counts < holders)
    if len(short):
        c = int(short[0])
        at_most, at_least = int(counts[present].min()) * len(present) // held, -(-len(present) // held)
        advice = f"use at most {at_most} clients" if at_most >= at_least else "use a milder long tail, or dirichlet:0.1"
        raise SettingError(
            f"classes:{held} with {clients} clients: class {classes[c]!r} has {counts[c]} samples for "
            f"{holders[c]} holders: {advice}."
        )
    order = shuffle_by_label(labels, rng)
    starts = np.cumsum(counts) - counts
    label = labels[order]
    position = np.arange(len(labels)) - starts[label]
    piece = position * holders[label] // counts[label]  # which of the holders; pieces differ by at most one
    owner = np.empty(len(labels), np.int64)
    owner[order] = slots[(np.cumsum(holders) - holders)[label] + piece] // held
    return owner


def _assign_classes(clients: int, classes: int, held: int, rng: np.random.Generator) -> Ints:
    """Which classes each client holds, (clients, held): distinct per client; holders per class differ by at most one.

    Assigning the classes in turn is balanced but gives few different combinations. Random swaps between pairs of
    clients, skipped where a client would hold a class twice, keep the balance and mix the combinations.
    """
    held_classes = (rng.permutation(classes)[np.arange(clients * held) % classes]).reshape(clients, held)
    pairs = clients // 2
    for _ in range(10 * held + 20):
        order = rng.permutation(clients)
        a, b = order[:pairs], order[pairs : 2 * pairs]
        i, j = rng.integers(held, size=(2, pairs))
        first, second = held_classes[a, i], held_classes[b, j]
        allowed = ~((held_classes[b] == first[:, None]).any(1) | (held_classes[a] == second[:, None]).any(1))
        held_classes[a[allowed], i[allowed]] = second[allowed]
        held_classes[b[allowed], j[allowed]] = first[allowed]
    return held_classes
