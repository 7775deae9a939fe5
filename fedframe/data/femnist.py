"""`femnist`: LEAF's json files of hand-written characters, whose writers are the natural clients.

LEAF's scripts produce these files (github.com/TalwalkarLab/leaf, data/femnist/preprocess.sh); there is no download and
so no checksum: their structure is checked instead.
"""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedframe.data.arrays import make_samples
from fedframe.data.files import data_root, read_bytes, search_folders
from fedframe.data.source import ArrayInputs, Samples
from fedframe.data.spec import DataSpec, RawData
from fedframe.errors import DataError

CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
SIDE = 28


def load_femnist(spec: DataSpec) -> RawData:
    """Digits and letters of 62 classes, 28x28, by writer."""
    spec.allow_options(())
    for folder in search_folders(spec, ("femnist/data", "leaf/data/femnist/data", "FEMNIST")):
        train, test = _files(folder, "train") or _files(folder, "all_data"), _files(folder, "test")
        if train:
            writers: dict[str, int] = {}
            first = _samples(train, writers)
            second = _samples(test, writers) if test else None
            return RawData("femnist", first, second, CLASSES, tuple(writers))
    raise DataError(
        f"femnist is not in {data_root(spec).absolute()}: run preprocess.sh of LEAF's data/femnist and put its "
        f"folders train and test of json files into {(data_root(spec) / 'femnist').absolute()}."
    )


def _files(folder: Path, part: str) -> list[Path]:
    return sorted((folder / part).glob("*.json"))


def _samples(files: list[Path], writers: dict[str, int]) -> Samples:
    """Read all samples of json files; new writers are added to the dict in order of appearance."""
    x: list[npt.NDArray[Any]] = []
    y: list[npt.NDArray[Any]] = []
    user: list[npt.NDArray[Any]] = []
    for path in files:
        try:
            content = json.loads(read_bytes(path))
            for name in content["users"]:
                data = content["user_data"][name]
                pixels = np.asarray(data["x"], np.float32).reshape(-1, SIDE * SIDE)
                labels = np.asarray(data["y"], np.int64)
                if len(pixels) != len(labels):
                    raise ValueError(f"{name} has {len(pixels)} images and {len(labels)} labels")
                if not np.all((labels >= 0) & (labels < len(CLASSES))):
                    raise ValueError(f"{name} has a label outside 0 to {len(CLASSES) - 1}")
                x.append(_as_bytes(pixels))
                y.append(labels)
                user.append(np.full(len(labels), writers.setdefault(str(name), len(writers)), np.int64))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path} is damaged or no LEAF file with users and user_data of 28x28 images ({error})."
            ) from None
    if not sum(map(len, y)):
        raise DataError(f"{files[0].parent} holds no samples.")
    if any(part.dtype != np.uint8 for part in x):
        x = [part / np.float32(255) if part.dtype == np.uint8 else part for part in x]
    images = torch.from_numpy(np.concatenate(x).reshape(-1, SIDE, SIDE, 1))
    return make_samples(ArrayInputs(images), np.concatenate(y), np.concatenate(user), str(files[0].parent))


def _as_bytes(pixels: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """Undo LEAF's division of bytes by 255 where possible: bytes take a quarter of the memory."""
    scaled = pixels * 255
    whole = np.rint(scaled)
    if np.all((np.abs(scaled - whole) <= 0.01) & (whole >= 0) & (whole <= 255)):  # false for NaN
        return whole.astype(np.uint8)
    return pixels
