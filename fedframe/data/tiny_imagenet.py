"""`tiny-imagenet`: 200 classes, 100,000 + 10,000 photographs of 64x64, from Stanford's folder or zip."""

from __future__ import annotations

import os
import shutil
import zipfile
import zlib
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from fedframe.data.files import RemoteFile, download_files, find_first, read_bytes, search_folders, write_data_file
from fedframe.data.images import image_inputs
from fedframe.data.source import ArrayInputs, Inputs, Samples
from fedframe.data.spec import DataSpec, RawData
from fedframe.errors import DataError

FOLDER = "tiny-imagenet-200"
SHAPE = (64, 64, 3)
ZIP = RemoteFile(
    "tiny-imagenet-200.zip",
    ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
    "90528d7ca1a48142e341f4ef8d21d0de",
)


def load_tiny_imagenet(spec: DataSpec) -> RawData:
    """Training images from train/, test images from val/, whose labels are public."""
    spec.allow_options(())
    folders = search_folders(spec, ("TinyImageNet",))
    folder = next((path for path in folders if (path / "wnids.txt").exists()), None)
    folder = folder or find_first(folders, (FOLDER,))
    if folder is None:
        archive = find_first(folders, (ZIP.file,))
        if archive is None:
            archive = download_files(spec, (ZIP,), f"{ZIP.file}, or the folder {FOLDER} that it holds,") / ZIP.file
        folder = _extract(archive)
    ids = _read_text(folder / "wnids.txt").split()
    number = {wnid: i for i, wnid in enumerate(ids)}
    train = [(path, label) for wnid, label in number.items() for path in _images_in(folder / "train" / wnid / "images")]
    test = _read_annotations(folder / "val", number)
    if not train or not test:
        raise DataError(f"{folder} holds no images; train/<wnid>/images and val/images are expected.")
    return RawData(
        "tiny-imagenet", _samples(train, folder, "train"), _samples(test, folder, "val"), _class_names(folder, ids)
    )


def _images_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"there is no {folder}; every class of wnids.txt has such a folder.")
    return sorted(folder.iterdir())


def _read_annotations(folder: Path, number: dict[str, int]) -> list[tuple[Path, int]]:
    """Image paths and labels from val_annotations.txt: file name, wnid and a box in every line."""
    out = []
    for line in _read_text(folder / "val_annotations.txt").splitlines():
        parts = line.split("\t")
        if len(parts) < 2 or parts[1] not in number:
            raise DataError(f"{folder / 'val_annotations.txt'} has the line {line!r}; a file and a wnid are expected.")
        out.append((folder / "images" / parts[0], number[parts[1]]))
    return out


def _read_text(path: Path) -> str:
    if not path.exists():
        raise DataError(f"there is no {path}; the folder {FOLDER} has one.")
    return read_bytes(path).decode("utf-8", "replace")


def _class_names(folder: Path, ids: list[str]) -> tuple[str, ...]:
    """The first synonym of each id in words.txt, or the id if it is not listed."""
    synonyms = {}
    if (folder / "words.txt").exists():
        for line in _read_text(folder / "words.txt").splitlines():
            wnid, _, text = line.partition("\t")
            synonyms[wnid] = text.split(",")[0]
    names = [synonyms.get(wnid, wnid) for wnid in ids]
    # Two ids can share their first synonym; class names must be unique.
    return tuple(name if names.count(name) == 1 else f"{name} ({wnid})" for name, wnid in zip(names, ids, strict=True))


def _samples(found: list[tuple[Path, int]], folder: Path, part: str) -> Samples:
    paths = [path for path, _ in found]
    return Samples(_decode_cached(paths, folder / f"fedframe-{part}.npy"), torch.tensor([label for _, label in found]))


def _decode_cached(paths: list[Path], cache: Path) -> Inputs:
    """Decoded images, cached beside the folders: decoding 100,000 files takes a minute, mapping one file no time."""
    try:
        pixels = np.load(cache, mmap_mode="c", allow_pickle=False)
        if pixels.dtype == np.uint8 and pixels.shape == (len(paths), *SHAPE):
            return ArrayInputs(torch.from_numpy(pixels))
    except (OSError, ValueError, EOFError):
        pass
    inputs = image_inputs(paths, SHAPE, lazy=False)
    partial = cache.with_name(f".{os.getpid()}-{cache.name}")
    try:
        assert isinstance(inputs, ArrayInputs)
        np.save(partial, inputs.tensor.numpy())
        partial.replace(cache)
    except OSError:  # without write permission the images are decoded again at the next start
        partial.unlink(missing_ok=True)
    return inputs


def _extract(archive: Path) -> Path:
    """Extract the regular files of the zip into its top folder beside it, all or none of them."""
    folder, partial = archive.parent / FOLDER, archive.parent / f".{FOLDER}.{os.getpid()}"
    try:
        with zipfile.ZipFile(archive) as pack:
            for entry in pack.infolist():
                top, *parts = PurePosixPath(entry.filename).parts
                wanted = len(parts) == 1 or parts[:1] in (["train"], ["val"])
                if top == FOLDER and wanted and ".." not in parts and not entry.is_dir():
                    write_data_file(partial.joinpath(*parts), pack.read(entry))
        partial.rename(folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, FileNotFoundError, RuntimeError) as error:
        raise DataError(f"{archive} is damaged or cut short ({error}); download it again.") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder
