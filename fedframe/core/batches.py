"""Batches of one client's samples, shuffled, normalised and augmented: rows of one shared array."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedframe.data import Samples, Source
from fedframe.data.augment import Augment

CHUNK_BYTES = (
    8 << 20
)  # gather this much at once: few large gathers are cheaper than many small ones, and it stays in cache


def training_batches(
    source: Source,
    rows: Tensor,
    size: int,
    generator: torch.Generator,
    augment: Augment,
    lonely_last: bool,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """One epoch over the rows in random order, as inputs, targets and rows; the last batch may be smaller."""
    order = rows[torch.randperm(len(rows), generator=generator)]
    ends = batch_ends(len(order), size, lonely_last)
    bytes_per_sample = 4 * max(1, torch.Size(source.input_shape).numel())
    batches_at_once = max(1, CHUNK_BYTES // (bytes_per_sample * size))
    start = 0
    for first in range(0, len(ends), batches_at_once):
        group = ends[first : first + batches_at_once]
        taken = order[start : group[-1]]
        inputs = augment(source.batch(source.train, taken), generator)
        labels = source.train.targets[taken]
        sizes = [end - before for before, end in zip([start, *group], group, strict=False)]
        # All batches' views in one call per tensor: one at a time, they take longer than a small net's loss.
        yield from zip(*(each.split_with_sizes(sizes) for each in (inputs, labels, taken)), strict=True)
        start = group[-1]


def batch_ends(count: int, size: int, lonely_last: bool) -> list[int]:
    """Where the batches of an epoch end.

    With `lonely_last` False a last batch of one sample joins the batch before it, because BatchNorm cannot normalise
    a single vector.
    """
    ends = [*range(size, count, size), count]
    if not lonely_last and len(ends) > 1 and ends[-1] - ends[-2] == 1:
        del ends[-2]
    return ends


def plain_batches(source: Source, samples: Samples, rows: Tensor, size: int) -> Iterator[Tensor]:
    """Inputs of the rows in their order, without augmentation; nothing of no rows, which many nets cannot take."""
    for part in rows.split(size) if len(rows) else ():  # type: ignore[no-untyped-call]
        yield source.batch(samples, part)
