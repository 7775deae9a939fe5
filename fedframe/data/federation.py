"""The Federation: a source and, for every client, the rows it trains on and the rows it is tested on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, overload

import numpy as np
import torch

from fedframe.data.partition import assign_clients
from fedframe.data.ragged import Ragged, grouped
from fedframe.data.source import Ints, Samples, Source
from fedframe.data.stratified import draw_from_global, held_out_mask
from fedframe.errors import SettingError
from fedframe.util.seeds import numpy_generator_for


class ClientNames(Sequence[str]):
    """Client names, made on access: 100,000 texts are never built."""

    def __init__(self, count: int, users: Ints | None = None, texts: Sequence[str] | None = None) -> None:
        self._count, self._users, self._texts = count, users, texts

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, k: int) -> str: ...
    @overload
    def __getitem__(self, k: slice) -> list[str]: ...
    def __getitem__(self, k: int | slice) -> str | list[str]:
        if isinstance(k, slice):
            return [self[i] for i in range(*k.indices(self._count))]
        k = range(self._count)[k]
        user = k if self._users is None else int(self._users[k])
        return str(user) if self._texts is None else self._texts[user]


@dataclass(frozen=True)
class Federation:
    """Clients as views over one source: nothing is copied per client."""

    source: Source
    train: Ragged  # rows of source.train that client k trains on
    local_test: Ragged  # rows of the pool below that client k is tested on
    local_test_pool: Literal["train", "test"]
    names: Sequence[str]
    partition: str = ""
    notes: tuple[str, ...] = ()  # for the user, e.g. that samples had to be moved between clients
    # Rows of source.train that the server holds.
    server_rows: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    with_new_clients: Federation | None = None  # also the clients that are held out of training, last
    told_counts: torch.Tensor | None = None  # of clients elsewhere: how many test samples they have of each class
    left: frozenset[int] = frozenset()  # clients that have left: they keep their number and have no samples

    def __len__(self) -> int:
        return len(self.train)

    @property
    def present(self) -> Ints:
        """The numbers of the clients that have not left."""
        return np.setdiff1d(np.arange(len(self)), sorted(self.left))

    @property
    def all_clients(self) -> Federation:
        """The federation with the clients that are held out of training; they come last."""
        return self if self.with_new_clients is None else self.with_new_clients

    @property
    def local_test_samples(self) -> Samples:
        """The samples that local_test points into."""
        samples = self.source.train if self.local_test_pool == "train" else self.source.test
        assert samples is not None
        return samples

    def train_batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Model-ready inputs and labels of these rows of source.train."""
        return self.source.batch(self.source.train, rows), self.source.train.targets.index_select(0, rows)

    def local_test_batch(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Model-ready inputs and labels of these rows of the local test pool."""
        samples = self.local_test_samples
        return self.source.batch(samples, rows), samples.targets.index_select(0, rows)

    def class_counts(self, client: int) -> torch.Tensor:
        """Training samples of each class at this client, int64 (C,)."""
        labels = self.source.train.y.index_select(0, self.train[client])
        return torch.bincount(labels, minlength=len(self.source.classes))

    def table(self, limit: int | None = None) -> torch.Tensor:
        """Training samples of each class at the first `limit` clients (None: all), int64 (K', C)."""
        return _label_counts(self.train, self.source.train.y, len(self.source.classes), limit)

    def local_test_table(self, limit: int | None = None) -> torch.Tensor:
        """Local test samples of each class at the first `limit` clients, as `table`."""
        return _label_counts(self.local_test, self.local_test_samples.y, len(self.source.classes), limit)


def _label_counts(rows: Ragged, labels: torch.Tensor, classes: int, limit: int | None) -> torch.Tensor:
    """Count the labels of the first `limit` lists of rows."""
    clients = len(rows) if limit is None else min(limit, len(rows))
    end = int(rows.offsets[clients])
    owner = torch.repeat_interleave(torch.arange(clients), rows.sizes()[:clients])
    cell = owner * classes + labels.index_select(0, rows.values[:end])
    return torch.bincount(cell, minlength=clients * classes).view(clients, classes)


def make_federation(
    source: Source,
    *,
    partition: str,
    clients: int | None,
    seed: int,
    min_size: int = 10,
    local_test: float | Literal["global"] = 0.25,
) -> Federation:
    """Partition the training data among clients and give each a local test set.

    `min_size` is the minimum size of a client under dirichlet, before its local test set is held out; the other
    partitions give every client at least one sample. `local_test` is the held-out share of each client, or "global":
    its test set is drawn from the global one by the client's label distribution.
    """
    pool: Literal["train", "test"] = "train"
    if local_test == "global":
        pool = "test"
        if source.test is None:
            raise SettingError("local_test is 'global', and the source has no test set: use a share, e.g. 0.25.")
    elif isinstance(local_test, str) or not 0 <= local_test < 1:
        raise SettingError(f"local_test is {local_test!r}; use a share from 0 to below 1, e.g. 0.25, or 'global'.")
    assigned = assign_clients(source, partition, clients, seed, min_size)
    owner, count = assigned.owner, assigned.clients
    labels, rows = source.train.y.numpy(), np.arange(len(source.train.y))
    rng = numpy_generator_for(seed, "local test")
    if pool == "test" and source.test is not None:
        local_tests = draw_from_global(owner, labels, source.test.y.numpy(), count, len(source.classes), rng)
    else:
        mask = held_out_mask(owner, labels, count, len(source.classes), float(local_test), rng, source.train.group)
        local_tests = grouped(np.where(mask, owner, -1), rows, count)
        owner = np.where(mask, -1, owner)
    names = ClientNames(count, assigned.users, source.user_names if assigned.users is not None else None)
    notes = (*source.notes, *assigned.notes)
    return Federation(source, grouped(owner, rows, count), local_tests, pool, names, partition, notes)
