"""Arrays -> samples: any layout, number type, labels and users; from Python objects and from `npz:PATH` files."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset, TensorDataset

from fedframe.data.medmnist import is_medmnist, rename_medmnist, val_choice
from fedframe.data.source import ArrayInputs, Ints, Samples
from fedframe.data.spec import DataSpec, RawData
from fedframe.data.target import EncodedTarget, encode_target, find_task
from fedframe.errors import DataError, SettingError
from fedframe.util.unpacking import refuse_zip_bomb

CHANNELS = (1, 3, 4)
ARRAY_NAMES = ("x_train", "y_train", "x_test", "y_test", "user_train", "user_test")


def array_inputs(values: Any, what: str) -> ArrayInputs:
    """Images (n, H, W), (n, H, W, C) or (n, C, H, W) as (n, H, W, C); vectors (n, d) as they are.

    uint8 stays; every other kind of number becomes float32.
    """
    x = values.detach().cpu() if isinstance(values, torch.Tensor) else _tensor(np.asarray(values), what)
    if x.dtype == torch.bool:
        x = x.to(torch.uint8)
    elif x.dtype != torch.uint8:
        if x.is_complex():
            raise DataError(f"{what} holds complex numbers; use numbers of type uint8 or float32.")
        x = x.to(torch.float32)
    if x.dim() == 1:
        x = x[:, None]
    elif x.dim() == 3:
        x = x[..., None]
    elif x.dim() == 4 and not _channels_last(tuple(x.shape)):
        x = x.permute(0, 2, 3, 1)
    elif x.dim() not in (2, 4):
        raise DataError(f"{what} has shape {tuple(x.shape)}; use (n, d), (n, H, W) or (n, H, W, C).")
    if x.numel() == 0:
        raise DataError(f"{what} has shape {tuple(x.shape)} and so holds no samples.")
    return ArrayInputs(x.contiguous())


def _tensor(array: npt.NDArray[Any], what: str) -> torch.Tensor:
    """Convert a numpy array of numbers to a tensor."""
    if array.dtype.kind not in "buif":
        raise DataError(f"{what} holds values of type {array.dtype}; use numbers of type uint8 or float32.")
    if array.dtype.kind != "b" and array.dtype != np.uint8:
        array = array.astype(np.float32, copy=False)
    # torch cannot hold negative strides, foreign byte order or read-only arrays.
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _channels_last(shape: tuple[int, ...]) -> bool:
    """Whether 4-d images are channels last: the last dimension is 1, 3 or 4, or no larger than the second."""
    return shape[3] in CHANNELS or (shape[1] not in CHANNELS and shape[3] <= shape[1])


def check_finite(x: ArrayInputs, what: str) -> None:
    """Refuse NaN and infinity."""
    for start in range(0, len(x) if x.tensor.is_floating_point() else 0, 4096):
        good = torch.isfinite(x.tensor[start : start + 4096]).flatten(1).all(1)
        if not bool(good.all()):
            row = start + int((~good).nonzero()[0])
            raise DataError(f"{what} holds NaN or infinity, first in row {row}; every number must be finite.")


def encode_categories(first: Any, second: Any | None, what: str) -> tuple[Ints, Ints | None, tuple[str, ...]]:
    """Encode whole numbers or texts of both sets as indices into their sorted values, which are also returned."""
    parts = [_column(part, what) for part in (first, second) if part is not None]
    if len({part.dtype.kind for part in parts}) > 1:
        parts = [part.astype(str) for part in parts]
    values, index = np.unique(np.concatenate(parts), return_inverse=True)
    index = index.astype(np.int64)
    cut = len(parts[0])
    names = tuple(str(value) for value in values.tolist())
    return index[:cut], index[cut:] if second is not None else None, names


def _column(values: Any, what: str) -> npt.NDArray[Any]:
    """One value per sample as an array of int64 or texts."""
    array = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(f"{what} has shape {array.shape}; give one value per sample, shape (n,).")
    if array.dtype.kind == "f":
        if not np.all(array == np.floor(array)):  # NaN is unequal to itself
            raise DataError(f"{what} holds fractions or NaN; use whole numbers or texts.")
        return array.astype(np.int64)
    if array.dtype.kind in "bui":
        return array.astype(np.int64)
    if array.dtype.kind == "S":
        try:
            return np.char.decode(array, "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{what} holds bytes that are not UTF-8 text ({error.object[:20]!r}).") from None
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array.tolist()):
        array = array.astype(str)
    if array.dtype.kind == "U":
        check_text(array, what)
    if array.dtype.kind != "U":
        raise DataError(f"{what} holds values of type {array.dtype}; use whole numbers or texts.")
    return array


def check_text(array: npt.NDArray[Any], what: str) -> None:
    """Refuse texts that cannot be written down: halves of characters, which bytes in a wrong encoding leave behind."""
    for value in np.unique(array).tolist():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise DataError(f"{what} holds {value[:40]!a}, which is not valid Unicode; decode it again.") from None


def from_arrays(name: str, arrays: Mapping[str, Any], where: str, task: str = "auto") -> RawData:
    """Samples from arrays x_train, y_train (or x, y) and, if given, x_test, y_test, user_train, user_test."""
    given = dict(arrays)
    for short, full in (("x", "x_train"), ("y", "y_train"), ("user", "user_train")):
        if short in given and full not in given:
            given[full] = given[short]
    for required in (
        "x_train",
        "y_train",
        *(("x_test", "y_test") if {"x_test", "y_test"} & given.keys() else ()),
    ):
        if required not in given:
            found = ", ".join(sorted(arrays)) or "nothing"
            raise DataError(f"{where} lacks {required}; it holds {found}.")
    has_test = "x_test" in given
    learned = encode_labels(given["y_train"], given.get("y_test") if has_test else None, f"y of {where}", task)
    y, y_test, classes = (learned.y, learned.y_test, learned.strata) if isinstance(learned, EncodedTarget) else learned
    user: Ints | None = None
    user_test: Ints | None = None
    users: tuple[str, ...] | None = None
    if "user_train" in given:
        test_users = given.get("user_test") if has_test else None
        user, user_test, users = encode_categories(given["user_train"], test_users, f"user of {where}")
    train = make_samples(array_inputs(given["x_train"], f"x_train of {where}"), y, user, f"{where}, training set")
    test = None
    if has_test and y_test is not None:
        test = make_samples(
            array_inputs(given["x_test"], f"x_test of {where}"), y_test, user_test, f"{where}, test set"
        )
        if test.x.shape != train.x.shape:
            raise DataError(
                f"{where}: a training sample has shape {train.x.shape} and a test sample {test.x.shape}; "
                "they must agree."
            )
    if not isinstance(learned, EncodedTarget):
        return RawData(name, train, test, classes, users)
    train = replace(train, values=learned.values)
    test = replace(test, values=learned.values_test) if test is not None else None
    return RawData(name, train, test, classes, users, None, (learned.note,), learned.target)


def encode_labels(
    first: Any, second: Any | None, what: str, asked: str
) -> EncodedTarget | tuple[Ints, Ints | None, tuple[str, ...]]:
    """Classes, or the numbers or labels to learn."""
    task = find_task(asked, first, what)
    return (
        encode_categories(first, second, what)
        if task == "classification"
        else encode_target(task, first, second, None, what)
    )


def make_samples(x: ArrayInputs, y: Ints, user: Ints | None, what: str) -> Samples:
    """Check that lengths agree and inputs are finite, and make samples of them."""
    for other, column in (("y", y), ("user", user)):
        if column is not None and len(column) != len(x):
            raise DataError(f"{what}: x has {len(x)} rows and {other} has {len(column)}; they must be as many.")
    check_finite(x, what)
    return Samples(x, torch.from_numpy(np.ascontiguousarray(y, np.int64)), user)


ACCEPTED_DATA = (
    "give a spec like 'digits' or 'npz:my.npz', (x_train, y_train), (x_train, y_train, x_test, y_test), a dict "
    "with those names, a torch Dataset, a (training Dataset, test Dataset) pair or a fedframe "
    "Source."
)


def from_python(data: object, task: str = "auto") -> RawData:
    """Samples from arrays, tensors, dicts of them or torch Datasets."""
    if isinstance(data, Mapping):
        unknown = set(data) - {*ARRAY_NAMES, "x", "y", "user"}
        if unknown:
            raise SettingError(
                f"the data dict has the unknown name {min(map(str, unknown))!r}: use {', '.join(ARRAY_NAMES)}."
            )
        return from_arrays("arrays", data, "the data dict", task)
    if isinstance(data, Dataset):
        x, y = _read_dataset(data)
        return from_arrays("dataset", {"x_train": x, "y_train": y}, "the Dataset", task)
    if isinstance(data, tuple | list):
        if len(data) == 2 and all(isinstance(part, Dataset) for part in data):
            (x, y), (x_test, y_test) = map(_read_dataset, data)
            given = dict(zip(ARRAY_NAMES, (x, y, x_test, y_test), strict=False))
            return from_arrays("dataset", given, "the Datasets", task)
        if len(data) in (2, 4):
            return from_arrays("arrays", dict(zip(ARRAY_NAMES, data, strict=False)), "the given arrays", task)
    raise SettingError(f"data is a {type(data).__name__}, which is not understood: {ACCEPTED_DATA}")


def _read_dataset(dataset: Dataset[Any]) -> tuple[Any, Any]:
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


def load_npz(spec: DataSpec) -> RawData:
    """Arrays by our names (ARRAY_NAMES) or by MedMNIST's in one file; pickles are refused."""
    spec.allow_options(("val",))
    path = spec.file
    if path.is_file() and path.stat().st_size and path.open("rb").read(2) not in (b"PK", b"\x93N"):
        raise DataError(f"{path} is not an npz file; np.savez(path, x_train=..., y_train=...) writes one.")
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise DataError(f"{path} is not an npz file; np.savez(path, x_train=..., y_train=...) writes one.")
        with file:
            assert file.zip is not None  # it is open
            refuse_zip_bomb(path, file.zip, "save it without compression (np.savez)")
            arrays = {name: file[name] for name in file.files}
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        OSError,
        KeyError,
        RuntimeError,
        MemoryError,
        SyntaxError,
        TokenError,
    ) as error:
        raise DataError(f"{path} is damaged or cut short ({error}); a complete npz file is expected.") from None
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise DataError(
                f"{path} holds Python objects, which are never opened; save plain arrays of numbers or texts."
            ) from None
        raise DataError(f"{path} is damaged, or not an npz file ({error}).") from None
    choice, task = val_choice(spec), spec.schema.task if spec.schema is not None else spec.task
    if is_medmnist(arrays):
        arrays, notes = rename_medmnist(arrays, choice, str(path))
        found = from_arrays(path.stem, arrays, str(path), task)
        return replace(found, notes=(*notes, *found.notes))
    if "val" in spec.options:
        raise SettingError(f"data {spec.text!r}: val is about files with val_images, which this is not; leave it out.")
    return from_arrays(path.stem, arrays, str(path), task)
