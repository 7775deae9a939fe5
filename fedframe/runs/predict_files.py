"""Files in, predictions out: what `fedframe predict` prints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedframe.data.arrays import array_inputs
from fedframe.data.images import SUFFIXES, decode
from fedframe.data.tables import encode_rows, read_csv, read_parquet
from fedframe.errors import DataError
from fedframe.runs.folder import RunFolder
from fedframe.runs.predictor import Predictor

AT_ONCE = 256  # inputs decoded and predicted together: memory stays bounded for folders of any size


def predict_file(folder: Path, path: Path, client: str | None, top: int) -> Iterator[str]:
    """A line per input, separated by tabs: its name, then the most probable classes, each with its probability."""
    RunFolder.open(folder)  # a folder that is none is refused in the words of the other commands
    predictor = Predictor.load(folder, client)
    for names, raw in read_inputs(path, predictor):
        best = predictor.probabilities(raw).topk(min(top, len(predictor.classes)))
        for name, values, indices in zip(names, best.values, best.indices, strict=True):
            pairs = [f"{predictor.classes[int(i)]}\t{float(v):.3f}" for v, i in zip(values, indices, strict=True)]
            yield "\t".join([name, *pairs])


def read_inputs(path: Path, predictor: Predictor) -> Iterator[tuple[list[str], Tensor]]:
    """Names and raw values of the inputs in a file or folder, a batch at a time."""
    if not path.exists():
        raise DataError(f"There is no {path}.")
    suffix = path.suffix.lower()
    if path.is_dir() or suffix in SUFFIXES:
        yield from read_images(path, predictor)
    elif suffix in (".npz", ".npy"):
        yield from numbered(read_arrays(path))
    elif suffix in (".csv", ".parquet"):
        if predictor.columns is None:
            raise DataError(f"{path} is a table, but the model was not trained on one.")
        table = (read_csv if suffix == ".csv" else read_parquet)(path)
        rows = {name: column.tolist() for name, column in table.items()}
        yield from numbered(encode_rows(rows, predictor.columns, predictor.mean))
    else:
        raise DataError(f"{path}: predictions take images, a folder of images, .npz, .npy, .csv or .parquet.")


def read_images(path: Path, predictor: Predictor) -> Iterator[tuple[list[str], Tensor]]:
    """An image, or all images below a folder."""
    paths = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
    shape = predictor.stored_shape
    if len(shape) != 3:
        raise DataError(f"{path} holds images, but the model takes {shape[0]} numbers per input.")
    if not paths:
        raise DataError(f"{path} holds no images.")
    for start in range(0, len(paths), AT_ONCE):
        some = paths[start : start + AT_ONCE]
        pixels = np.stack([decode(p, (shape[0], shape[1], shape[2])) for p in some])
        yield [str(p) for p in some], torch.from_numpy(pixels)


def read_arrays(path: Path) -> Tensor:
    """The inputs in an array file: x, x_test, or the only array there is."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return array_inputs(loaded, str(path)).tensor
        name = next((name for name in ("x", "x_test") if name in loaded.files), None)
        if name is None and len(loaded.files) == 1:
            name = loaded.files[0]
        if name is None:
            raise DataError(f"{path} holds {', '.join(loaded.files)}; name the inputs x.")
        return array_inputs(loaded[name], str(path)).tensor
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}.") from error


def numbered(raw: Tensor) -> Iterator[tuple[list[str], Tensor]]:
    """Rows by their number."""
    for start in range(0, len(raw), AT_ONCE):
        part = raw[start : start + AT_ONCE]
        yield [str(start + i) for i in range(len(part))], part
