"""Clients that are kept out of the training entirely, to see afterwards what the method does for somebody new."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedframe.data.federation import Federation, Names
from fedframe.data.ragged import Ragged
from fedframe.data.seeds import generator
from fedframe.data.source import Ints
from fedframe.errors import SettingError


def keep_out(federation: Federation, wanted: float, seed: int) -> Federation:
    """The federation without some clients drawn by the seed; they follow the others in its `everyone`.

    `wanted` is a share of the clients (below 1) or their number; 0 leaves the federation as it is. Input normalisation
    and the global test set stay those of the whole data.
    """
    total = len(federation)
    if not wanted:
        return federation
    count = max(1, round(wanted * total)) if wanted < 1 else int(wanted)
    if count >= total:
        raise SettingError(
            f"new_clients = {wanted:g} leaves none of {total} clients to train; use at most {total - 1}."
        )
    drawn = np.sort(generator(seed, "new clients").choice(total, count, replace=False))
    stays = np.setdiff1d(np.arange(total), drawn)
    everyone = select(federation, np.concatenate([stays, drawn]))
    return replace(select(federation, stays), with_new=everyone)


def select(federation: Federation, clients: Ints) -> Federation:
    """Some clients of a federation, in this order."""
    chosen = torch.from_numpy(clients)
    named = federation.source.user_names is not None
    names = Names(len(clients), None, [federation.names[int(k)] for k in clients] if named else None)
    return replace(
        federation,
        train=pick(federation.train, chosen),
        local_test=pick(federation.local_test, chosen),
        names=names,
    )


def pick(lists: Ragged, chosen: torch.Tensor) -> Ragged:
    """Some of the lists, in this order."""
    starts, sizes = lists.offsets[chosen], lists.sizes()[chosen]
    offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    shift = torch.repeat_interleave(starts - offsets[:-1], sizes)
    return Ragged(offsets, lists.values[shift + torch.arange(len(shift))])
