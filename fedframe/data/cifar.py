"""`cifar10`, `cifar100`: the binary versions (the Python versions are pickles, which are never opened)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedframe.data.arrays import make_samples
from fedframe.data.files import RemoteFile, download_files, extract, find_first, read_bytes, search_folders
from fedframe.data.source import ArrayInputs, Samples
from fedframe.data.spec import DataSpec, RawData
from fedframe.errors import DataError

SITE = "https://www.cs.toronto.edu/~kriz/"
PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class _Version:
    """File names and record layout of one of the two sets."""

    folder: str
    archive: str
    md5: str
    train: tuple[str, ...]
    test: str
    names: str  # file of class names
    classes: int
    label_bytes: int  # the last of them is the label


CIFAR10 = _Version(
    folder="cifar-10-batches-bin",
    archive="cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    test="test_batch.bin",
    names="batches.meta.txt",
    classes=10,
    label_bytes=1,
)
CIFAR100 = _Version(
    folder="cifar-100-binary",
    archive="cifar-100-binary.tar.gz",
    md5="03b5dce01913d631647c71ecec9e9cb8",
    train=("train.bin",),
    test="test.bin",
    names="fine_label_names.txt",
    classes=100,
    label_bytes=2,  # coarse, fine
)


def load_cifar10(spec: DataSpec) -> RawData:
    """Photographs of 10 classes, 50,000 + 10,000, 32x32 in colour."""
    return _load(spec, CIFAR10)


def load_cifar100(spec: DataSpec) -> RawData:
    """Photographs of 100 (fine) classes, 50,000 + 10,000, 32x32 in colour."""
    return _load(spec, CIFAR100)


def _load(spec: DataSpec, version: _Version) -> RawData:
    spec.allow_options(())
    folder = _folder(spec, version)
    train = _samples([folder / name for name in version.train], version)
    test = _samples([folder / version.test], version)
    return RawData(spec.name, train, test, _classes(folder / version.names, version.classes))


def _folder(spec: DataSpec, version: _Version) -> Path:
    """Find the folder of the extracted files; download and extract them if there is none."""
    folders = search_folders(spec, ("cifar", spec.name.upper()))
    needed = (*version.train, version.test)
    for folder in [*(parent / version.folder for parent in folders), *folders]:
        if all((folder / name).exists() for name in needed):
            return folder
    archive = find_first(folders, (version.archive,))
    if archive is None:
        remote = RemoteFile(version.archive, (SITE + version.archive,), version.md5)
        expected = f"{version.archive}, or the folder {version.folder} with {', '.join(needed)},"
        archive = download_files(spec, (remote,), expected) / version.archive
    folder = archive.parent / version.folder
    extract(archive, [f"{version.folder}/{name}" for name in (*needed, version.names)], folder)
    return folder


def _samples(files: list[Path], version: _Version) -> Samples:
    """Read records of label bytes and 3072 pixel bytes (channel, row, column) as (n, 32, 32, 3) images."""
    size = version.label_bytes + PIXELS
    parts = []
    for path in files:
        data = read_bytes(path)
        if not data or len(data) % size:
            raise DataError(
                f"{path} is damaged or cut short: {len(data)} bytes are no whole number of records of {size} bytes."
            )
        parts.append(np.frombuffer(data, np.uint8).reshape(-1, size))
    images = np.empty((sum(map(len, parts)), 32, 32, 3), np.uint8)
    labels, start = [], 0
    for path, part in zip(files, parts, strict=True):
        label = part[:, version.label_bytes - 1].astype(np.int64)
        if label.max() >= version.classes:
            raise DataError(f"{path} has the label {label.max()}; 0 to {version.classes - 1} are expected.")
        labels.append(label)
        pixels = part[:, version.label_bytes :].reshape(-1, 3, 32, 32)
        images[start : start + len(part)] = pixels.transpose(0, 2, 3, 1)
        start += len(part)
    return make_samples(ArrayInputs(torch.from_numpy(images)), np.concatenate(labels), None, str(files[0].parent))


def _classes(path: Path, count: int) -> tuple[str, ...]:
    """Class names from the text file, or numbers if there is no such file."""
    if not path.exists():
        return tuple(map(str, range(count)))
    names = tuple(read_bytes(path).decode("utf-8", "replace").split())
    if len(names) != count:
        raise DataError(f"{path} has {len(names)} class names; {count} are expected.")
    return names
