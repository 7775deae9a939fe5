"""`tiny-imagenet`: 200 classes, 100,000 + 10,000 photographs of 64x64, from Stanford's folder or zip."""

from __future__ import annotations

import os
import shutil
import zipfile
import zlib
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from fedframe.data.files import Remote, fetch, locate, places, read, write
from fedframe.data.images import image_inputs
from fedframe.data.source import ArrayInputs, Inputs, Samples
from fedframe.data.spec import Raw, Request
from fedframe.errors import DataError

FOLDER = "tiny-imagenet-200"
SHAPE = (64, 64, 3)
ZIP = Remote(
    "tiny-imagenet-200.zip",
    ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
    "90528d7ca1a48142e341f4ef8d21d0de",
)


def load_tiny_imagenet(request: Request) -> Raw:
    """Training images from train/, test images from val/, whose labels are public."""
    request.allow(())
    around = places(request, ("TinyImageNet",))
    folder = next((path for path in around if (path / "wnids.txt").exists()), None)
    folder = folder or locate(around, (FOLDER,))
    if folder is None:
        archive = locate(around, (ZIP.file,))
        if archive is None:
            archive = fetch(request, (ZIP,), f"{ZIP.file}, or the folder {FOLDER} that it holds,") / ZIP.file
        folder = _unpack(archive)
    ids = _text(folder / "wnids.txt").split()
    number = {wnid: i for i, wnid in enumerate(ids)}
    train = [(path, label) for wnid, label in number.items() for path in _below(folder / "train" / wnid / "images")]
    test = _annotated(folder / "val", number)
    if not train or not test:
        raise DataError(f"{folder} holds no images; train/<wnid>/images and val/images are expected.")
    return Raw("tiny-imagenet", _samples(train, folder, "train"), _samples(test, folder, "val"), _names(folder, ids))


def _below(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"there is no {folder}; every class of wnids.txt has such a folder.")
    return sorted(folder.iterdir())


def _annotated(folder: Path, number: dict[str, int]) -> list[tuple[Path, int]]:
    """Images and labels of val_annotations.txt: name, wnid and a box in every line."""
    out = []
    for line in _text(folder / "val_annotations.txt").splitlines():
        parts = line.split("\t")
        if len(parts) < 2 or parts[1] not in number:
            raise DataError(f"{folder / 'val_annotations.txt'} has the line {line!r}; a file and a wnid are expected.")
        out.append((folder / "images" / parts[0], number[parts[1]]))
    return out


def _text(path: Path) -> str:
    if not path.exists():
        raise DataError(f"there is no {path}; the folder {FOLDER} has one.")
    return read(path).decode("utf-8", "replace")


def _names(folder: Path, ids: list[str]) -> tuple[str, ...]:
    """The first word for each id, or the id where words.txt does not know it."""
    words = {}
    if (folder / "words.txt").exists():
        for line in _text(folder / "words.txt").splitlines():
            wnid, _, text = line.partition("\t")
            words[wnid] = text.split(",")[0]
    names = [words.get(wnid, wnid) for wnid in ids]
    # Two ids can share their first word; a class name has to be one class.
    return tuple(name if names.count(name) == 1 else f"{name} ({wnid})" for name, wnid in zip(names, ids, strict=True))


def _samples(found: list[tuple[Path, int]], folder: Path, part: str) -> Samples:
    paths = [path for path, _ in found]
    return Samples(_pixels(paths, folder / f"fedframe-{part}.npy"), torch.tensor([label for _, label in found]))


def _pixels(paths: list[Path], kept: Path) -> Inputs:
    """Decoded images, kept beside the folders: decoding 100,000 files takes a minute, mapping one no time."""
    try:
        pixels = np.load(kept, mmap_mode="c", allow_pickle=False)
        if pixels.dtype == np.uint8 and pixels.shape == (len(paths), *SHAPE):
            return ArrayInputs(torch.from_numpy(pixels))
    except (OSError, ValueError, EOFError):
        pass
    inputs = image_inputs(paths, SHAPE, lazy=False)
    partial = kept.with_name(f".{os.getpid()}-{kept.name}")
    try:
        assert isinstance(inputs, ArrayInputs)
        np.save(partial, inputs.tensor.numpy())
        partial.replace(kept)
    except OSError:  # a folder that cannot be written costs time at the next start, no more
        partial.unlink(missing_ok=True)
    return inputs


def _unpack(archive: Path) -> Path:
    """Write the regular files of the zip below its own top folder beside it, complete or not at all."""
    folder, partial = archive.parent / FOLDER, archive.parent / f".{FOLDER}.{os.getpid()}"
    try:
        with zipfile.ZipFile(archive) as pack:
            for entry in pack.infolist():
                top, *parts = PurePosixPath(entry.filename).parts
                wanted = len(parts) == 1 or parts[:1] in (["train"], ["val"])
                if top == FOLDER and wanted and ".." not in parts and not entry.is_dir():
                    write(partial.joinpath(*parts), pack.read(entry))
        partial.rename(folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, FileNotFoundError, RuntimeError) as error:
        raise DataError(f"{archive} is damaged or cut short ({error}); download it again.") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder
