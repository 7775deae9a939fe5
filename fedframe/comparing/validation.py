"""Validation data for tuning: a share of what each client trains on, so that no test sample has a say in the choice.

The clients are those of the final runs: same partition, same local test sets, same normalisation. From each client's
training data a share is held out, class by class. A client's own held-out samples score its models, all of them
together stand for the global test set; the test set itself and the clients' own test sets are not even in the object.
(The run setting `validate_share` draws its share before clients are made. It spares the global test set, but samples
of it may later be in a client's own test set, which a choice by `personal` scores must not have seen.)
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from fedframe.api import make_clients
from fedframe.data import Federation
from fedframe.data.local_test import hold_out
from fedframe.data.ragged import grouped
from fedframe.data.seeds import generator
from fedframe.errors import SettingError
from fedframe.settings import Settings


def validation_clients(final: Settings, data: object, share: float) -> Federation:
    """The clients of a final run with these settings, with validation data in the place of all test data."""
    clients = make_clients(final, final.data if data is None else data)
    return with_validation(clients, share, final.seed)


def with_validation(final: Federation, share: float, seed: int) -> Federation:
    """Clients that train on less, and are scored on what that leaves."""
    source, clients = final.source, len(final)
    labels = source.train.y.numpy()
    owner = np.full(len(labels), -1, np.int64)  # local test samples stay nobody's
    owner[final.train.values.numpy()] = final.train.owners().numpy()
    mask = hold_out(owner, labels, clients, len(source.classes), share, generator(seed, "tuning"))
    if not mask.any():
        raise SettingError(f"validate_share = {share:g} leaves no validation data; use validate_share = 0.5.")
    rows = np.arange(len(labels))
    validation = source.train.subset(torch.from_numpy(rows[mask]))
    return dataclasses.replace(
        final,
        source=dataclasses.replace(source, test=validation),
        train=grouped(np.where(mask, -1, owner), rows, clients),
        local_test=grouped(np.where(mask, owner, -1), rows, clients),
        local_test_pool="train",
        with_new=None,
    )
