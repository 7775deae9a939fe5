"""The largest remainder rule for many clients at once: how many samples of each class go to a test set.

A class with n_c of a client's n samples is owed q_c = T * n_c / n of T test samples. Everybody gets the whole
part of q_c; what is left goes to the largest remainders. Put differently: seat j of class c (counted from 0)
is worth q_c - j, and the T most valuable seats are taken. That form sorts all seats of all clients in one go.
"""

from __future__ import annotations

import numpy as np

from fedframe.data.source import Ints


def largest_remainder(client: Ints, label: Ints, count: Ints, cap: Ints, target: Ints, classes: int) -> Ints:
    """Seats per group, where a group is the samples of one class at one client.

    client, label, count, cap: one entry per group (count > 0), sorted by client; cap is the most a group can
    give. target: samples wanted per client (K,). Where the target reaches the number of groups that can give
    at all, each of them gets one. Equal remainders go to class (client + i) mod C with the smallest i, so
    that no class is favoured over the clients.
    """
    total = np.bincount(client, weights=count, minlength=len(target)).astype(np.int64)
    able = np.bincount(client, weights=cap > 0, minlength=len(target)).astype(np.int64)
    all_represented = target >= able

    group = np.repeat(np.arange(len(client)), cap)  # the candidate seats
    first = np.cumsum(cap) - cap
    seat = np.arange(len(group)) - first[group]
    owner = client[group]
    # (q_c - j) * n in whole numbers: no rounding decides a tie.
    owed = target[owner] * count[group] - seat * total[owner]
    reserved = (seat == 0) & all_represented[owner]
    turn = (label[group] - owner) % classes
    order = np.lexsort((turn, -owed, ~reserved, owner))

    candidates = np.bincount(owner, minlength=len(target))
    rank = np.arange(len(order)) - np.repeat(np.cumsum(candidates) - candidates, candidates)
    taken = order[rank < target[owner[order]]]
    return np.bincount(group[taken], minlength=len(client)).astype(np.int64)
