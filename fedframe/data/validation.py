"""Validation: a federation that scores on a share of its training data, and never sees a sample it will be tested on.

The split is the one of the real run: only then are the local test sets of tuned settings as unseen as the global one.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from fedframe.data.federation import Federation
from fedframe.data.local_test import hold_out
from fedframe.data.ragged import grouped
from fedframe.data.seeds import generator
from fedframe.errors import SettingError


def for_validation(federation: Federation, share: float, seed: int) -> Federation:
    """The federation with `share` of every client's training samples in the place of all test data.

    What a client holds out is its own test set; all of it together is the global one. Clients, their names and the
    rest of their training samples stay as they are.
    """
    if not 0 <= share < 1:
        raise SettingError(f"validate_share is {share}; use a share from 0 to below 1, e.g. 0.2.")
    if share == 0:
        return federation
    source, train = federation.source, federation.train
    rows, owner = train.values.numpy(), train.owners().numpy()
    rng = generator(seed, "validation")
    mask = hold_out(owner, source.train.y.numpy()[rows], len(train), len(source.classes), share, rng)
    if not mask.any():
        raise SettingError(
            f"validate_share = {share:g} leaves no sample to score on: no client has two training samples of a class; "
            "use fewer clients."
        )
    held_out = np.unique(rows[mask])
    kept = ~np.isin(rows, held_out)  # nobody trains on it, not even where clients share samples
    return dataclasses.replace(
        federation,
        source=dataclasses.replace(source, test=source.train.subset(torch.from_numpy(held_out))),
        train=grouped(owner[kept], rows[kept], len(train)),
        local_test=grouped(owner[mask], np.searchsorted(held_out, rows[mask]), len(train)),
        local_test_pool="test",
    )
