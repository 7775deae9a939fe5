"""The names of MedMNIST's own npz files: train_images, train_labels, and the same of val and test.

Labels are of shape (n, 1), or (n, labels) where a sample may have several. The validation samples are set aside, as in
that benchmark's protocol, where they choose among settings: they are neither trained nor tested on, and a note says so.
`?val=train` trains on them too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedframe.data.spec import DataSpec
from fedframe.errors import DataError, SettingError

SPLITS = ("train", "val", "test")
VAL_CHOICES = ("aside", "train")


def is_medmnist(arrays: Mapping[str, Any]) -> bool:
    """Whether these are the arrays of such a file."""
    return "train_images" in arrays and "x_train" not in arrays


def val_choice(spec: DataSpec) -> str:
    """What is done with validation samples: set aside, or added to the training samples."""
    choice = spec.options.get("val", "aside")
    if choice not in VAL_CHOICES:
        raise SettingError(f"data {spec.text!r}: val = {choice!r} is unknown; use {' or '.join(VAL_CHOICES)}.")
    return choice


def val_note(count: int, choice: str, has_test: bool) -> str:
    """What was done with validation samples, for the user."""
    if not has_test:
        return f"There is no test split: the {count:,} samples of the validation split are the test set."
    if choice == "train":
        return f"The {count:,} samples of the validation split are added to the training samples (val=train)."
    return (
        f"The {count:,} samples of the validation split are set aside: neither trained nor tested on; ?val=train "
        "behind the path trains on them too."
    )


def rename_medmnist(arrays: Mapping[str, Any], choice: str, where: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The arrays by our names, and what was done with the validation samples."""
    splits: dict[str, tuple[Any, Any]] = {}
    for split in SPLITS:
        images, labels = f"{split}_images", f"{split}_labels"
        if images in arrays or labels in arrays:
            for name in (images, labels):
                if name not in arrays:
                    raise DataError(f"{where} lacks {name}; it holds {', '.join(sorted(arrays))}.")
            splits[split] = arrays[images], arrays[labels]
    notes = []
    (x, y), val, test = splits["train"], splits.get("val"), splits.get("test")
    if val is not None:
        notes.append(val_note(len(val[0]), choice, test is not None))
        if test is None:
            test = val
        elif choice == "train":
            if val[0].shape[1:] != x.shape[1:]:
                raise DataError(f"{where}: images of train and val differ in shape; they must agree.")
            x, y = np.concatenate((x, val[0])), np.concatenate((y, val[1]))
    if x.ndim == 4 and x.shape[3] > 4:
        depth = x.shape[3]
        notes.append(
            f"A sample is a volume, {' x '.join(map(str, x.shape[1:]))}: nets see an image of {depth} channels."
        )
    found = {"x_train": x, "y_train": y}
    return (found | {"x_test": test[0], "y_test": test[1]} if test is not None else found), tuple(notes)
