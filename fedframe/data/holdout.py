"""What is held out of a federation's training: whole clients, samples for the server, a validation set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedframe.data.federation import ClientNames, Federation
from fedframe.data.ragged import grouped
from fedframe.data.source import Ints
from fedframe.data.stratified import held_out_mask
from fedframe.errors import SettingError
from fedframe.util.seeds import numpy_generator_for


def hold_out_clients(federation: Federation, wanted: float, seed: int) -> Federation:
    """The federation without some clients, drawn by the seed, to see later what a method does for new clients.

    They follow the others in its `all_clients`. `wanted` is a share of the clients (below 1) or their number; 0 leaves
    the federation as it is. Input normalisation and the global test set remain those of the whole data.
    """
    total = len(federation)
    if not wanted:
        return federation
    count = max(1, round(wanted * total)) if wanted < 1 else int(wanted)
    if count >= total:
        raise SettingError(
            f"new_clients = {wanted:g} leaves none of {total} clients to train; use at most {total - 1}."
        )
    held_out = np.sort(numpy_generator_for(seed, "new clients").choice(total, count, replace=False))
    kept = np.setdiff1d(np.arange(total), held_out)
    all_clients = select_clients(federation, np.concatenate([kept, held_out]))
    return replace(select_clients(federation, kept), with_new_clients=all_clients)


def select_clients(federation: Federation, clients: Ints) -> Federation:
    """These clients of a federation, in this order."""
    selected = torch.from_numpy(clients)
    named = federation.source.user_names is not None
    names = ClientNames(len(clients), None, [federation.names[int(k)] for k in clients] if named else None)
    return replace(
        federation,
        train=federation.train.select(selected),
        local_test=federation.local_test.select(selected),
        names=names,
    )


def hold_out_server_samples(federation: Federation, each: int, seed: int, setting: str) -> Federation:
    """The federation with `each` training samples of every class on the server (`server_rows`), not at the clients.

    They are drawn over all clients: at most half of a class, and never a client's last sample. `setting` is the name of
    the setting that requests them.
    """
    labels, train = federation.source.train.y.numpy(), federation.train
    rows, owner = train.values.numpy(), train.owners().numpy()
    left = train.sizes().numpy().copy()
    classes = federation.source.classes
    taken: list[int] = []  # positions in `rows`
    most = each
    for number, name in enumerate(classes):
        candidates = np.flatnonzero(labels[rows] == number)
        selected: list[int] = []
        for candidate in numpy_generator_for(seed, f"aside {number}").permutation(candidates)[: len(candidates) // 2]:
            if len(selected) < each and left[owner[candidate]] > 1:
                left[owner[candidate]] -= 1
                selected.append(int(candidate))
        if not selected:
            raise SettingError(
                f"{setting} = {each}: the server needs samples of every class, and of class "
                f"{name!r} the clients train on {len(candidates)}, too few to give one away; use data with more of it "
                "(a milder long tail, data_share = 1), or a method that needs none, such as fedavg."
            )
        most = min(most, len(selected))
        taken += selected
    if most < each:
        raise SettingError(f"{setting} = {each} is more than half of a class; {setting} = {most} works.")
    kept = np.ones(len(rows), bool)
    kept[taken] = False
    note = (
        f"The server holds {len(taken)} labelled training samples, {each} of each class, taken from the clients' data "
        f"({setting}): {len(taken) / len(rows):.1%} of it. None of them is a test sample."
    )
    return replace(
        federation,
        train=grouped(owner[kept], rows[kept], len(train)),
        server_rows=torch.from_numpy(np.sort(rows[taken])),
        notes=(*federation.notes, note),
    )


def hold_out_validation(federation: Federation, share: float, seed: int) -> Federation:
    """The federation with `share` of every client's training samples in place of all test data.

    A client's held-out samples are its local test set; together they are the global one. Clients, their names and the
    rest of their training samples stay as they are, so that the local test sets remain as unseen by tuned settings as
    the global one.
    """
    if not 0 <= share < 1:
        raise SettingError(f"validate_share is {share}; use a share from 0 to below 1, e.g. 0.2.")
    if share == 0:
        return federation
    source, train = federation.source, federation.train
    rows, owner = train.values.numpy(), train.owners().numpy()
    rng = numpy_generator_for(seed, "validation")
    group = None if source.train.group is None else source.train.group[rows]
    labels, classes = source.train.y.numpy()[rows], len(source.classes)
    mask = held_out_mask(owner, labels, len(train), classes, share, rng, group)
    if not mask.any():
        raise SettingError(
            f"validate_share = {share:g} leaves no sample to score on: no client has two training samples of a class; "
            "use fewer clients."
        )
    held_out = np.unique(rows[mask])
    kept = ~np.isin(rows, held_out)  # no client trains on them, even where clients share samples
    return replace(
        federation,
        source=replace(source, test=source.train.subset(torch.from_numpy(held_out))),
        train=grouped(owner[kept], rows[kept], len(train)),
        local_test=grouped(owner[mask], np.searchsorted(held_out, rows[mask]), len(train)),
        local_test_pool="test",
    )
