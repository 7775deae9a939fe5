"""`imagefolder:PATH`: class/image or client/class/image, optionally below train and test folders."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from fedframe.data.arrays import codes
from fedframe.data.images import SUFFIXES, common_shape, fitted, image_inputs
from fedframe.data.raw import Raw, Request
from fedframe.data.source import Ints, Samples
from fedframe.errors import DataError

LAYOUT = "class/image or client/class/image, optionally below train and test"


def load_imagefolder(request: Request) -> Raw:
    """Images whose folders are their classes (and, one level up, their clients)."""
    request.allow(("size",))
    base = request.file
    train, test = base, None
    if (base / "train").is_dir():
        train = base / "train"
        test = next((base / name for name in ("test", "val", "valid") if (base / name).is_dir()), None)
    paths = [_images(folder) for folder in (train, test) if folder is not None]
    depth = _depth(base, [path for part in paths for path in part])
    labels = [[path[-2] for path in part] for part in paths]
    y, y_test, classes = codes(labels[0], labels[1] if test else None, f"class of {base}")
    user: Ints | None = None
    user_test: Ints | None = None
    users = None
    if depth == 3:
        clients = [[path[0] for path in part] for part in paths]
        user, user_test, users = codes(clients[0], clients[1] if test else None, f"client of {base}")
    first = [train.joinpath(*path) for path in paths[0]]
    shape = request.image_shape or common_shape(first, request.whole("size"))
    made = Samples(image_inputs(first, shape), torch.from_numpy(y), user)
    second = None
    if test is not None and y_test is not None:
        second_paths = [test.joinpath(*path) for path in paths[1]]
        second = Samples(image_inputs(second_paths, shape), torch.from_numpy(y_test), user_test)
    notes = fitted(first, shape) if request.image_shape else ()  # where a run's shape is given, and not the images' own
    return Raw(base.name or "imagefolder", made, second, classes, users, notes=notes)


def _images(folder: Path) -> list[tuple[str, ...]]:
    """The parts of every image's path below a folder, sorted: the order of a disk is chance."""
    found = []
    for place, _, files in os.walk(folder):
        above = Path(place).relative_to(folder).parts
        found += [(*above, name) for name in files if Path(name).suffix.lower() in SUFFIXES]
    if not found:
        raise DataError(f"{folder} holds no images; {LAYOUT} is expected.")
    return sorted(found)


def _depth(base: Path, paths: list[tuple[str, ...]]) -> int:
    """2 for class/image, 3 for client/class/image."""
    depths = np.unique([len(path) for path in paths])
    if len(depths) > 1 or depths[0] not in (2, 3):
        odd = next(path for path in paths if len(path) != len(paths[0]) or len(path) not in (2, 3))
        raise DataError(f"{base} mixes levels of folders, e.g. {'/'.join(odd)}; {LAYOUT} is expected.")
    return int(depths[0])
