"""Data from Python: arrays, tensors, dicts of them and torch Datasets -> samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

from fedframe.data.arrays import NAMES, from_arrays
from fedframe.data.raw import Raw
from fedframe.errors import DataError, SettingError

WHAT_WORKS = (
    "a spec like 'digits' or 'npz:my.npz', (x_train, y_train), (x_train, y_train, x_test, y_test), a dict "
    "with those names, a torch Dataset, a (training Dataset, test Dataset) pair or a fedframe Source would "
    "do."
)


def from_python(data: object) -> Raw:
    """Samples of Python objects."""
    if isinstance(data, Mapping):
        unknown = set(data) - {*NAMES, "x", "y", "user"}
        if unknown:
            raise SettingError(
                f"the data dict has the unknown name {min(map(str, unknown))!r}: use {', '.join(NAMES)}."
            )
        return from_arrays("arrays", data, "the data dict")
    if isinstance(data, Dataset):
        x, y = _read(data)
        return from_arrays("dataset", {"x_train": x, "y_train": y}, "the Dataset")
    if isinstance(data, tuple | list):
        if len(data) == 2 and all(isinstance(part, Dataset) for part in data):
            (x, y), (x_test, y_test) = map(_read, data)
            return from_arrays("dataset", dict(zip(NAMES, (x, y, x_test, y_test), strict=False)), "the Datasets")
        if len(data) in (2, 4):
            return from_arrays("arrays", dict(zip(NAMES, data, strict=False)), "the given arrays")
    raise SettingError(f"data is a {type(data).__name__}, which is not understood: {WHAT_WORKS}")


def _read(dataset: Dataset[Any]) -> tuple[Any, Any]:
    """All samples of a map-style Dataset of (input, label) pairs."""
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return dataset.tensors
    try:
        length = len(dataset)  # type: ignore[arg-type]
        pairs = [dataset[i] for i in range(length)]
        x = [np.asarray(pair[0]) for pair in pairs]
        y = np.array([int(pair[1]) for pair in pairs])
    except (TypeError, IndexError, ValueError) as error:
        raise DataError(
            f"the Dataset {type(dataset).__name__} does not give (input, whole-number label) pairs by index ({error})."
        ) from None
    if not x:
        raise DataError(f"the Dataset {type(dataset).__name__} is empty; it must hold at least two samples.")
    shapes = {sample.shape for sample in x}
    if len(shapes) > 1:
        raise DataError(f"the Dataset's inputs have several shapes, e.g. {sorted(shapes)[:2]}; they must be alike.")
    return torch.from_numpy(np.stack(x)), y
