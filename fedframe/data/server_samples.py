"""Training data that the server holds: a few samples of every class, taken away from the clients."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from fedframe.data.federation import Federation
from fedframe.data.ragged import grouped
from fedframe.data.seeds import generator
from fedframe.errors import SettingError


def put_aside(federation: Federation, each: int, seed: int, setting: str) -> Federation:
    """The federation with `each` training samples of every class on the server (`aside`), drawn over all clients.

    No more than half of a class, and never a client's last sample. `setting` names what asked for them.
    """
    labels, train = federation.source.train.y.numpy(), federation.train
    rows, owner = train.values.numpy(), train.owners().numpy()
    left = train.sizes().numpy().copy()
    classes = federation.source.classes
    taken: list[int] = []  # places in `rows`
    most = each
    for number, name in enumerate(classes):
        places = np.flatnonzero(labels[rows] == number)
        chosen: list[int] = []
        for place in generator(seed, f"aside {number}").permutation(places)[: len(places) // 2]:
            if len(chosen) < each and left[owner[place]] > 1:
                left[owner[place]] -= 1
                chosen.append(int(place))
        if not chosen:
            raise SettingError(
                f"{setting} = {each}: the server needs samples of every class, and of class "
                f"{name!r} the clients train on {len(places)}, too few to give one away; use data with more of it "
                "(a milder long tail, data_share = 1), or a method that needs none, such as fedavg."
            )
        most = min(most, len(chosen))
        taken += chosen
    if most < each:
        raise SettingError(f"{setting} = {each} is more than half of a class; {setting} = {most} works.")
    kept = np.ones(len(rows), bool)
    kept[taken] = False
    note = (
        f"The server holds {len(taken)} labelled training samples, {each} of each class, taken from the clients' data "
        f"({setting}): {len(taken) / len(rows):.1%} of it. None of them is a test sample."
    )
    return dataclasses.replace(
        federation,
        train=grouped(owner[kept], rows[kept], len(train)),
        aside=torch.from_numpy(np.sort(rows[taken])),
        notes=(*federation.notes, note),
    )
