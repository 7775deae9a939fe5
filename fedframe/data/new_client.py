"""Data of a client that comes to a finished run: read into the form of the run's data, nothing fitted anew."""

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
from fedframe.data.spec import Form, Raw
from fedframe.data.stratified import hold_out
from fedframe.errors import DataError, SettingError, nearest
from fedframe.util.seeds import numpy_generator_for

LISTED = 20  # classes that a sentence names before it says how many there are
LOOK_AT = 500  # samples whose spread is compared with the run's
USUAL_SPREAD = (0.2, 5.0)  # of normalised values, which have 1 where the units are the run's


def load_newcomer(
    data: object,
    form: Form,
    *,
    share: float | None,
    usual_share: float,
    seed: int = 0,
    data_dir: Path | None = None,
    label: str | None = None,
    client_column: str | None = None,
) -> Federation:
    """One client that holds all the data, with its own test set: what the data bring, or a held-out share.

    `share` is what the user asked for, `usual_share` what counts if they did not.
    """
    if share is not None and not 0 <= share < 1:
        raise SettingError(f"test_share is {share:g}; use a share from 0 to below 1, e.g. {usual_share:g}.")
    where = repr(data) if isinstance(data, str) else "from Python"
    if isinstance(data, str):
        request = read_spec(data, data_dir, seed, label, client_column)
        data = dataclasses.replace(request, form=form)
    raw = load_raw(data)
    if raw.test is not None and share is not None:
        raise SettingError(f"data {where} bring {len(raw.test)} test samples of their own; leave test_share out.")
    check_form(raw, form, where)
    index = class_index(raw, form.classes, where)
    train = Samples(raw.train.x, index[raw.train.y])
    test = Samples(raw.test.x, index[raw.test.y]) if raw.test is not None else None
    source = Source(raw.name, train, test, form.classes, form.mean, form.std, None, form.columns)
    owner: Ints = np.zeros(len(train), np.int64)
    rows = np.arange(len(train))
    if test is not None:
        tested = grouped(np.zeros(len(test), np.int64), np.arange(len(test)), 1)
    else:
        asked = usual_share if share is None else share
        mask = hold_out(owner, train.y.numpy(), 1, len(form.classes), asked, numpy_generator_for(seed, "local test"))
        tested = grouped(np.where(mask, 0, -1), rows, 1)
        owner = np.where(mask, -1, owner)
    pool: Literal["train", "test"] = "train" if test is None else "test"
    notes = (*several_users(raw, where), *other_units(source, where), *raw.notes)
    return Federation(source, grouped(owner, rows, 1), tested, pool, [raw.name], "", notes)


def check_form(raw: Raw, form: Form, where: str) -> None:
    """Refuse samples that the run's model cannot take."""
    if tuple(raw.train.x.shape) != form.shape:
        shape = form.shape[:2] if len(form.shape) == 3 and form.shape[2] == 1 else form.shape
        good = ", ".join(map(str, ("n", *shape)))
        raise DataError(
            f"data {where}: a sample is of shape {tuple(raw.train.x.shape)}, but the run was trained on {form.shape}; "
            f"give x as ({good})."
        )
    if raw.columns is not None and raw.columns != form.columns:
        raise DataError(f"data {where}: this table was not encoded as the run's; give the file itself: csv:PATH.")


def class_index(raw: Raw, classes: Sequence[str], where: str) -> torch.Tensor:
    """The run's number of each class in the data; classes that are nowhere in the data do not matter."""
    labels = [samples.y.numpy() for samples in (raw.train, raw.test) if samples is not None]
    held = np.unique(np.concatenate(labels)).tolist()
    number = {name: i for i, name in enumerate(classes)}
    unknown = [raw.classes[i] for i in held if raw.classes[i] not in number]
    if unknown:
        some = ", ".join(map(repr, unknown[:3])) + (", ..." if len(unknown) > 3 else "")
        are = f"the label {some} is no class" if len(unknown) == 1 else f"the labels {some} are no classes"
        if len(classes) > LISTED:
            known = f"its {len(classes)} classes begin with {', '.join(classes[:LISTED])}."
        else:
            known = nearest(unknown[0], classes)
        numbers = all(name.lstrip("-").isdecimal() for name in unknown) and not any(map(str.isdecimal, classes))
        if numbers:  # counted in which order? A guess could swap sick and well
            known = f"write labels as the run's names: {', '.join(classes[:LISTED])}."
        raise DataError(f"data {where}: {are} of the run; {known}")
    return torch.tensor([number.get(name, -1) for name in raw.classes], dtype=torch.int64)


def several_users(raw: Raw, where: str) -> list[str]:
    """A note on data that name more than one client."""
    users = 0 if raw.train.user is None else len(np.unique(raw.train.user))
    return [f"The data {where} name {users} clients; they are taken together as one."] if users > 1 else []


def other_units(source: Source, where: str) -> list[str]:
    """A note on values that look as if they were in other units than the run's, such as pixels of 0 to 1."""
    raw = source.train.x.take(torch.arange(min(LOOK_AT, len(source.train))))
    spread = float(normalised(raw, source.mean, source.std).std(correction=0))
    if len(raw) < 2 or USUAL_SPREAD[0] <= spread <= USUAL_SPREAD[1]:
        return []
    return [
        f"The values of the data {where} spread {spread:.2g} times as far as the run's (their mean is "
        f"{float(raw.double().mean()):.3g}, the run's {float(source.mean.mean()):.3g}): are they in the same units?"
    ]
