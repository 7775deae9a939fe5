"""A federation without some of its clients: as if their data had never been there."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch

from fedframe.data.federation import Federation
from fedframe.data.load import training_values
from fedframe.data.ragged import Ragged
from fedframe.data.source import Samples, Source, statistics


def without_clients(federation: Federation, clients: Collection[int], seed: int) -> Federation:
    """The federation without these clients: the others keep their numbers and rows, inputs are normalised without them.

    `seed` is the run's. Normalisation that was agreed on, and not computed from the data, stays as it is.
    """
    if not clients:
        return federation
    left = federation.left | frozenset(clients)
    emptied = _emptied(federation, left)
    source = _normalised_without(federation, emptied, seed)
    with_new = federation.with_new_clients
    if with_new is not None:
        with_new = replace(_emptied(with_new, left), source=source)
    return replace(emptied, source=source, with_new_clients=with_new)


def _emptied(federation: Federation, left: frozenset[int]) -> Federation:
    """The federation in which these clients have no rows."""
    lists = [_without_lists(each, left) for each in (federation.train, federation.local_test)]
    return replace(federation, train=lists[0], local_test=lists[1], left=left)


def _without_lists(rows: Ragged, left: frozenset[int]) -> Ragged:
    gone = torch.zeros(len(rows), dtype=torch.bool)
    gone[sorted(left)] = True
    sizes = rows.sizes().masked_fill(gone, 0)
    return Ragged(torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]), rows.values[~gone[rows.owners()]])


def _normalised_without(federation: Federation, rest: Federation, seed: int) -> Source:
    """The source with the mean and deviation that data without the rows of clients that have left would have."""
    source = federation.source
    if not len(source.train):  # samples are elsewhere, and how they are normalised was agreed on
        return source
    gone = torch.zeros(len(source.train), dtype=torch.bool)
    gone[_rows_of(federation)] = True
    gone[_rows_of(rest)] = False  # what others have as well stays
    kept = source.train.subset(torch.nonzero(~gone).flatten())
    source = _rescaled_without(source, kept)
    mean, std = statistics(training_values(source.train, seed))
    if not (torch.equal(mean, source.mean) and torch.equal(std, source.std)):
        return source
    mean, std = statistics(training_values(kept, seed))
    return replace(source, mean=mean, std=std)


def _rescaled_without(source: Source, kept: Samples) -> Source:
    """The source whose numbers to learn have the mean and deviation of the samples that are kept."""
    target = source.target
    if target is None or target.mean is None or target.std is None:
        return source
    values = target.unscaled(source.train.targets)
    mean, std = statistics(values)
    close = 1e-4 * target.std  # values have been scaled, and back
    if bool(((mean - target.mean).abs() > close).any() or ((std - target.std).abs() > close).any()):
        return source  # agreed on, not computed
    mean, std = statistics(target.unscaled(kept.targets))
    after = replace(target, mean=mean, std=std)
    train = replace(source.train, values=after.scaled(values))
    test = source.test
    if test is not None:
        test = replace(test, values=after.scaled(target.unscaled(test.targets)))
    return replace(source, train=train, test=test, target=after)


def _rows_of(federation: Federation) -> torch.Tensor:
    """Rows of the training samples that clients train on or are tested on."""
    own = federation.all_clients
    return torch.cat([own.train.values, *([own.local_test.values] if own.local_test_pool == "train" else [])])
