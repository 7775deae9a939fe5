"""Data of a client that is new to a finished run: converted to the run's schema, no statistics are fitted again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fedframe.data.federation import Federation
from fedframe.data.load import load_raw, read_spec
from fedframe.data.ragged import grouped
from fedframe.data.source import Ints, Samples, Source, normalised
from fedframe.data.spec import DataSchema, RawData
from fedframe.data.stratified import held_out_mask
from fedframe.data.target import Target
from fedframe.errors import DataError, SettingError, nearest
from fedframe.util.seeds import numpy_generator_for

MAX_LISTED = 20  # classes that an error message lists
UNITS_SAMPLE = 500  # samples whose spread is compared with the run's
EXPECTED_SPREAD = (0.2, 5.0)  # of normalised values; 1 where the units are the run's


def load_new_client(
    data: object,
    schema: DataSchema,
    *,
    share: float | None,
    default_share: float,
    seed: int = 0,
    data_dir: Path | None = None,
    label: str | None = None,
    client_column: str | None = None,
    drop_unknown: bool = False,
) -> Federation:
    """A federation of one client that holds all the data; its local test set is the data's own or a held-out share.

    `share` is the user's test_share or None; `default_share` is used in the latter case. With `drop_unknown` samples of
    classes that the schema does not have are left out, and a note says how many.
    """
    if share is not None and not 0 <= share < 1:
        raise SettingError(f"test_share is {share:g}; use a share from 0 to below 1, e.g. {default_share:g}.")
    where = repr(data) if isinstance(data, str) else "from Python"
    if isinstance(data, str):
        spec = read_spec(data, data_dir, seed, label, client_column)
        data = dataclasses.replace(spec, schema=schema)
    raw = load_raw(data, schema.task)
    if raw.test is not None and share is not None:
        raise SettingError(f"data {where} bring {len(raw.test)} test samples of their own; leave test_share out.")
    check_schema(raw, schema, where)
    check_target(raw, schema, where)
    left_out: tuple[str, ...] = ()
    if drop_unknown and schema.target is None:
        raw, left_out = without_unknown(raw, schema.classes, where)
    if schema.target is None:
        index, classes = class_index(raw, schema.classes, where), schema.classes
    else:
        index, classes = torch.arange(len(raw.classes)), raw.classes
    train, test = (of_schema(samples, index, schema.target) for samples in (raw.train, raw.test))
    assert train is not None
    source = Source(raw.name, train, test, classes, schema.mean, schema.std, None, schema.columns, (), schema.target)
    owner: Ints = np.zeros(len(train), np.int64)
    rows = np.arange(len(train))
    if test is not None:
        local_test = grouped(np.zeros(len(test), np.int64), np.arange(len(test)), 1)
    else:
        held_out = default_share if share is None else share
        rng = numpy_generator_for(seed, "local test")
        mask = held_out_mask(owner, train.y.numpy(), 1, len(classes), held_out, rng, train.group)
        local_test = grouped(np.where(mask, 0, -1), rows, 1)
        owner = np.where(mask, -1, owner)
    pool: Literal["train", "test"] = "train" if test is None else "test"
    notes = (*_user_notes(raw, where), *_unit_notes(source, where), *raw.notes, *left_out)
    return Federation(source, grouped(owner, rows, 1), local_test, pool, [raw.name], "", notes)


def of_schema(samples: Samples | None, index: torch.Tensor, target: Target | None) -> Samples | None:
    """Samples with the run's numbers of the classes, or with values in the run's scale."""
    if samples is None:
        return None
    values = target.scaled(samples.values) if target is not None and samples.values is not None else None
    return Samples(samples.x, index[samples.y], None, values, samples.group)


def check_target(raw: RawData, schema: DataSchema, where: str) -> None:
    """Refuse data that are for another task than the run's, or with other outputs."""
    task = "classification" if raw.target is None else raw.target.task
    if task != schema.task:
        raise DataError(f"data {where} are for {task}, and the run's task is {schema.task}; give data for that.")
    if raw.target is None or schema.target is None:
        return
    mine, wanted = raw.target.names, schema.target.names
    if len(mine) != len(wanted) or (raw.columns is not None and mine != wanted):
        raise DataError(
            f"data {where} have the targets {', '.join(mine[:10])}, and the run has {', '.join(wanted[:10])}; name "
            f"these columns: label = {','.join(wanted[:10])}."
        )


def check_schema(raw: RawData, schema: DataSchema, where: str) -> None:
    """Refuse samples that the run's model cannot process."""
    if tuple(raw.train.x.shape) != schema.shape:
        shape = schema.shape[:2] if len(schema.shape) == 3 and schema.shape[2] == 1 else schema.shape
        good = ", ".join(map(str, ("n", *shape)))
        raise DataError(
            f"data {where}: a sample is of shape {tuple(raw.train.x.shape)}, but the run was trained on "
            f"{schema.shape}; give x as ({good})."
        )
    if raw.columns is not None and raw.columns != schema.columns:
        raise DataError(f"data {where}: this table was not encoded as the run's; give the file itself: csv:PATH.")


def without_unknown(raw: RawData, classes: Sequence[str], where: str) -> tuple[RawData, tuple[str, ...]]:
    """The data without samples of classes that nobody has agreed on, and a note on them."""
    known = torch.tensor([name in classes for name in raw.classes], dtype=torch.bool)
    kept = {name: known[each.y] for name, each in (("train", raw.train), ("test", raw.test)) if each is not None}
    gone = sum(int((~mask).sum()) for mask in kept.values())
    if not gone or not bool(kept["train"].any()):  # with nothing left, `class_index` says what is wrong
        return raw, ()
    train = raw.train.subset(kept["train"].nonzero()[:, 0])
    test = raw.test.subset(kept["test"].nonzero()[:, 0]) if raw.test is not None else None
    lost = [
        each.y[~kept[name]].tolist() for name, each in (("train", raw.train), ("test", raw.test)) if each is not None
    ]
    names = sorted({raw.classes[label] for labels in lost for label in labels})
    named = ", ".join(map(repr, names[:5]))
    note = f"{gone:,} samples of the data {where} are left out: their classes ({named}) are not agreed."
    return dataclasses.replace(raw, train=train, test=test), (note,)


def class_index(raw: RawData, classes: Sequence[str], where: str) -> torch.Tensor:
    """The run's index of each class of the data; classes without a sample are ignored."""
    labels = [samples.y.numpy() for samples in (raw.train, raw.test) if samples is not None]
    held = np.unique(np.concatenate(labels)).tolist()
    number = {name: i for i, name in enumerate(classes)}
    unknown = [raw.classes[i] for i in held if raw.classes[i] not in number]
    if unknown:
        some = ", ".join(map(repr, unknown[:3])) + (", ..." if len(unknown) > 3 else "")
        are = f"the label {some} is no class" if len(unknown) == 1 else f"the labels {some} are no classes"
        if len(classes) > MAX_LISTED:
            known = f"its {len(classes)} classes begin with {', '.join(classes[:MAX_LISTED])}."
        else:
            known = nearest(unknown[0], classes)
        numbers = all(name.lstrip("-").isdecimal() for name in unknown) and not any(map(str.isdecimal, classes))
        if numbers:  # their order is unknown: a guess could swap sick and healthy
            known = f"write labels as the run's names: {', '.join(classes[:MAX_LISTED])}."
        raise DataError(f"data {where}: {are} of the run; {known}")
    return torch.tensor([number.get(name, -1) for name in raw.classes], dtype=torch.int64)


def _user_notes(raw: RawData, where: str) -> list[str]:
    """A note if the data name more than one client."""
    users = 0 if raw.train.user is None else len(np.unique(raw.train.user))
    return [f"The data {where} name {users} clients; they are taken together as one."] if users > 1 else []


def _unit_notes(source: Source, where: str) -> list[str]:
    """A note if the values seem to be in other units than the run's, such as pixels of 0 to 1."""
    raw = source.train.x.take(torch.arange(min(UNITS_SAMPLE, len(source.train))))
    spread = float(normalised(raw, source.mean, source.std).std(correction=0))
    if len(raw) < 2 or EXPECTED_SPREAD[0] <= spread <= EXPECTED_SPREAD[1]:
        return []
    return [
        f"The values of the data {where} spread {spread:.2g} times as far as the run's (their mean is "
        f"{float(raw.double().mean()):.3g}, the run's {float(source.mean.mean()):.3g}): are they in the same units?"
    ]
