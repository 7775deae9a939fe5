"""`hf:NAME_OR_PATH`: data sets of the Hugging Face hub, or of a folder on disk, read with the package `datasets`.

A folder is what `save_to_disk` wrote, or one of data files; then no network is used. Inputs are one column of images,
arrays or lists of numbers. Which split is what: `train` is trained on, `test` tested on, `validation` set aside.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from fedframe.data.arrays import array_inputs, encode_categories, make_samples
from fedframe.data.images import StoredImage, common_shape, conversion_notes, image_inputs
from fedframe.data.medmnist import val_choice, val_note
from fedframe.data.source import ArrayInputs, Inputs, Ints, Samples
from fedframe.data.spec import DataSpec, RawData
from fedframe.data.tables import CLIENT_NAMES, LABEL_NAMES
from fedframe.errors import DataError, SettingError, nearest
from fedframe.util.extras import extra

OPTIONS = ("config", "revision", "input", "size", "val")
VALIDATION = ("validation", "valid", "val", "dev")


def datasets_package() -> ModuleType:
    """Import `datasets`, or say how to install it."""
    with extra("datasets", "data of the form hf:NAME_OR_PATH need datasets", DataError):
        import datasets
    found: ModuleType = datasets
    return found


def load_hub(spec: DataSpec) -> RawData:
    """The training and test splits of a data set: images, arrays or lists of numbers."""
    spec.allow_options(OPTIONS)
    choice = val_choice(spec)
    package = datasets_package()
    train, test, notes = choose_splits(package, spec, read_splits(package, spec), choice)
    label, client, column = find_columns(package, spec, train)
    parts = [train] if test is None else [train, test]
    for part in parts:
        if missing := [name for name in (label, client, column) if name and name not in part.column_names]:
            raise DataError(f"data {spec.text!r}: the test split lacks the column {missing[0]!r}; both must have it.")
    where = f"data {spec.text!r}"
    y, y_test, classes = encode_categories(*_both(parts, label), f"column {label!r} of {where}")
    names = getattr(train.features[label], "names", None)
    if names is not None:
        if "-1" in classes:
            raise DataError(f"{where}: some samples have no label (-1 in the column {label!r}); every one needs one.")
        classes = tuple(names[int(number)] for number in classes)
    user: Ints | None = None
    user_test: Ints | None = None
    users = None
    if client is not None:
        user, user_test, users = encode_categories(*_both(parts, client), f"column {client!r} of {where}")
    inputs, more = read_inputs(package, spec, parts, column)
    made = [_samples(x, *each, where) for x, each in zip(inputs, ((y, user), (y_test, user_test)), strict=False)]
    found = Path(str(spec.path)).name or "hf"
    return RawData(found, made[0], made[1] if test is not None else None, classes, users, notes=(*notes, *more))


def read_splits(package: ModuleType, spec: DataSpec) -> Mapping[str, Any]:
    """The splits by name; those of a folder without asking the network."""
    path, options = spec.path, spec.options
    assert path is not None
    saved = path / "dataset_dict.json", path / "state.json"
    try:
        if any(file.exists() for file in saved):
            found = package.load_from_disk(str(path))
        else:
            local = not spec.download and package.DownloadConfig(local_files_only=True)
            found = package.load_dataset(
                str(path.absolute()) if path.is_dir() else path.as_posix(),
                options.get("config"),
                revision=options.get("revision"),
                download_config=local or None,
            )
    except Exception as error:  # it raises errors of many packages
        reason = " ".join(str(error).split()).rstrip(".")[:300] or type(error).__name__
        here = "" if path.exists() else f"; there is no folder {path.absolute()} either"
        raise DataError(f"data {spec.text!r} cannot be loaded by 'datasets' ({reason}){here}.") from error
    return found if isinstance(found, Mapping) else {"train": found}


def choose_splits(
    package: ModuleType, spec: DataSpec, splits: Mapping[str, Any], choice: str
) -> tuple[Any, Any | None, list[str]]:
    """Training split, test split if there is one, and what was done with the validation split."""
    if "train" not in splits:
        raise DataError(f"data {spec.text!r} lack the split 'train'; they have {', '.join(splits)}.")
    train, test = splits["train"], splits.get("test")
    val = next((splits[name] for name in VALIDATION if name in splits), None)
    notes = [] if val is None else [val_note(len(val), choice, test is not None)]
    if val is not None and test is None:
        test = val
    elif val is not None and choice == "train":
        train = package.concatenate_datasets([train, val])
    elif val is None and "val" in spec.options:
        raise SettingError(f"data {spec.text!r}: val is about a validation split, and there is none; leave it out.")
    return train, test, notes


def find_columns(package: ModuleType, spec: DataSpec, train: Any) -> tuple[str, str | None, str]:
    """The columns of labels, clients (if any) and inputs."""
    features = train.features
    named = {name.lower(): name for name in features}
    label = _asked(spec, spec.label, "label", features)
    if label is None:
        coded = [name for name, feature in features.items() if isinstance(feature, package.ClassLabel)]
        usual = [named[name] for name in LABEL_NAMES if name in named]
        if not usual and len(coded) != 1:
            columns = ", ".join(coded or features)
            raise SettingError(f"data {spec.text!r}: which column is the label? Set label to one of: {columns}.")
        label = coded[0] if len(coded) == 1 else usual[0]
    client = _asked(spec, spec.client_column, "client_column", features)
    if client is None:
        client = next((named[name] for name in CLIENT_NAMES if name in named and named[name] != label), None)
    if client == label:
        raise SettingError(f"data {spec.text!r}: the column {label!r} cannot be both label and client column.")
    column = _asked(spec, spec.options.get("input"), "input", features)
    if column is None:
        others = [name for name in features if name not in (label, client)]
        images = [name for name in others if isinstance(features[name], package.Image)]
        arrays = [name for name in others if _is_array(features[name])]
        found = images or arrays
        if not found:
            raise DataError(
                f"data {spec.text!r} have no column of images, arrays or lists of numbers; a table of single numbers "
                "and texts is read from a file that Dataset.to_parquet writes: parquet:PATH."
            )
        if len(found) > 1:
            raise SettingError(
                f"data {spec.text!r} have several columns of inputs ({', '.join(found)}); name one: ?input={found[0]}."
            )
        column = found[0]
    return label, client, column


def read_inputs(
    package: ModuleType, spec: DataSpec, parts: Sequence[Any], column: str
) -> tuple[list[Inputs], list[str]]:
    """The inputs of every split, and what was done to images."""
    if not isinstance(parts[0].features[column], package.Image):
        if "size" in spec.options:
            raise SettingError(f"data {spec.text!r}: size is about images, and {column!r} holds none; leave it out.")
        what = f"column {column!r} of data {spec.text!r}"
        return [array_inputs(_array(part, column, what), what) for part in parts], []
    files = [stored_images(package, spec, part, column) for part in parts]
    shape = spec.image_shape or common_shape(files[0], spec.positive_int("size"))
    notes = conversion_notes(files[0], shape) if spec.image_shape else ()
    return [image_inputs(each, shape) for each in files], list(notes)


def stored_images(package: ModuleType, spec: DataSpec, part: Any, column: str) -> list[StoredImage]:
    """The encoded images of a split, read when needed."""
    encoded = part.select_columns([column]).cast_column(column, package.Image(decode=False))
    return [
        StoredImage(f"data {spec.text!r}, row {row}", partial(_bytes, encoded, column, row)) for row in range(len(part))
    ]


def _bytes(encoded: Any, column: str, row: int) -> bytes:
    found = encoded[row][column] or {}
    if found.get("bytes") is not None:
        content: bytes = found["bytes"]
        return content
    if not found.get("path"):
        raise OSError("the row holds no image")
    return Path(os.fspath(found["path"])).read_bytes()


def _array(part: Any, column: str, what: str) -> Any:
    try:
        return np.asarray(part.select_columns([column]).with_format("numpy")[:][column])
    except ValueError as error:
        raise DataError(f"{what} holds arrays of several shapes ({error}); they must be alike.") from None


def _is_array(feature: Any) -> bool:
    """Whether a column holds arrays or lists of numbers."""
    if hasattr(feature, "shape"):  # Array2D and the like
        return True
    inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
    if inner is None:
        return False
    kind = str(getattr(inner, "dtype", ""))
    return (kind.startswith(("int", "uint", "float", "bool")) and not hasattr(inner, "names")) or _is_array(inner)


def _asked(spec: DataSpec, name: str | None, setting: str, columns: Mapping[str, Any]) -> str | None:
    if name is not None and name not in columns:
        raise SettingError(
            f"{setting} is {name!r}, and data {spec.text!r} have no such column: {nearest(name, columns)}"
        )
    return name


def _both(parts: Sequence[Any], column: str) -> tuple[Any, Any | None]:
    found = [part.select_columns([column])[:][column] for part in parts]
    return found[0], found[1] if len(found) > 1 else None


def _samples(x: Inputs, y: Ints | None, user: Ints | None, where: str) -> Samples:
    assert y is not None
    if isinstance(x, ArrayInputs):
        return make_samples(x, y, user, where)
    return Samples(x, torch.from_numpy(y), user)
