"""Image files -> pixels: `imagefolder:PATH` and `list:FILE`.

All images of a set get one size. They are decoded at once or, where they would not fit into memory, on access.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from fedframe.data.arrays import encode_categories
from fedframe.data.files import read_bytes
from fedframe.data.source import ArrayInputs, Inputs, Ints, Samples
from fedframe.data.spec import DataSpec, RawData
from fedframe.errors import DataError
from fedframe.util.extras import extra

SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"))
GREY = ("1", "L", "LA", "I;16")
DEFAULT_SIZE = 64
MAX_HEADERS = 2000  # files whose headers are read to decide on size and channels
MAX_IN_MEMORY = 512 * 2**20  # bytes of pixels up to which a set is decoded at once
CACHE_SIZE = 64 * 2**20  # bytes of pixels that a lazy set keeps
MIN_ITEMS_FOR_PROGRESS = 2000  # fewer are decoded in a second or two

Item = TypeVar("Item")


@dataclass(frozen=True)
class StoredImage:
    """An encoded image that is no file of its own but part of one, such as a table's row."""

    name: str  # for error messages
    read: Callable[[], bytes]

    def __str__(self) -> str:
        return self.name


ImageFile = Path | StoredImage


def pillow() -> ModuleType:
    """Import PIL.Image, or say how to install it."""
    with extra("images", "reading image files needs pillow", DataError):
        from PIL import Image
    return Image


def open_image(image: ModuleType, file: ImageFile) -> Any:
    """Open an image; its pixels are not decoded yet."""
    return image.open(io.BytesIO(file.read()) if isinstance(file, StoredImage) else file)


def common_shape(paths: Sequence[ImageFile], size: int | None) -> tuple[int, int, int]:
    """(H, W, C) of a set: the requested size, or the images' own if they all agree, or 64x64.

    One channel if all images are grey, else three.
    """
    image = pillow()
    step = max(1, len(paths) // MAX_HEADERS)
    sizes, grey = set(), True
    for path in paths[::step]:
        try:
            with open_image(image, path) as file:
                sizes.add((file.height, file.width))
                grey &= file.mode in GREY
        except (OSError, ValueError, image.DecompressionBombError) as error:
            raise DataError(f"{path} cannot be read as an image ({error}).") from None
    height, width = (size, size) if size else sizes.pop() if len(sizes) == 1 else (DEFAULT_SIZE, DEFAULT_SIZE)
    return height, width, 1 if grey else 3


def conversion_notes(paths: Sequence[ImageFile], shape: tuple[int, int, int]) -> tuple[str, ...]:
    """Notes on images of another size or colour mode that are converted to this shape."""
    image = pillow()
    checked = paths[:: max(1, len(paths) // MAX_HEADERS)]
    sizes: Counter[str] = Counter()
    recoloured = 0
    for path in checked:
        with (
            contextlib.suppress(OSError, ValueError),
            open_image(image, path) as file,
        ):  # decoding reports what is wrong
            if (file.height, file.width) != shape[:2]:
                sizes[f"{file.height}x{file.width}"] += 1
            recoloured += (file.mode in GREY) != (shape[2] == 1)
    found = []
    if sizes:
        examples = ", ".join(size for size, _ in sizes.most_common(3))
        found.append(
            f"{sizes.total():,} of {len(checked):,} images are not {shape[0]}x{shape[1]} (but {examples}): each is "
            "scaled until it covers that, and the middle is cut out."
        )
    if recoloured:
        before, after = ("coloured", "grey") if shape[2] == 1 else ("grey", "RGB")
        found.append(f"{recoloured:,} of {len(checked):,} images are {before} and become {after}.")
    return tuple(found)


def decode(path: ImageFile, shape: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
    """Decode one file: scaled to cover the shape, then cropped at the centre."""
    image = pillow()
    height, width, channels = shape
    mode = "L" if channels == 1 else "RGB"
    try:
        with open_image(image, path) as file:
            file.draft(mode, (2 * width, 2 * height))  # lets the JPEG decoder skip detail that scaling would discard
            picture = file.convert(mode)
            picture = cover(image, picture, height, width)
            return np.asarray(picture, np.uint8).reshape(shape)
    except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
        raise DataError(f"{path} is damaged or no image ({error}).") from None


def cover(image: ModuleType, picture: Any, height: int, width: int) -> Any:
    """A picture of this size: scaled until it covers it, and cut out of the middle."""
    if picture.size == (width, height):
        return picture
    scale = max(width / picture.width, height / picture.height)
    wide, high = max(width, round(picture.width * scale)), max(height, round(picture.height * scale))
    left, top = (wide - width) // 2, (high - height) // 2
    scaled = picture.resize((wide, high), image.Resampling.BILINEAR)
    return scaled.crop((left, top, left + width, top + height))


class LazyImages:
    """Images decoded on access, with a cache of the newest 64 MB."""

    def __init__(self, paths: Sequence[ImageFile], shape: tuple[int, int, int]) -> None:
        self._paths, self._shape = paths, shape
        self._cache: dict[int, torch.Tensor] = {}
        self._capacity = max(1, CACHE_SIZE // int(np.prod(shape)))

    @property
    def shape(self) -> tuple[int, ...]:
        """(H, W, C) of every image."""
        return self._shape

    def __len__(self) -> int:
        return len(self._paths)

    def take(self, rows: torch.Tensor) -> torch.Tensor:
        """Decode these images."""
        out = torch.empty((len(rows), *self._shape), dtype=torch.uint8)
        for i, row in enumerate(rows.tolist()):
            out[i] = self._decode(row)
        return out

    def _decode(self, row: int) -> torch.Tensor:
        found = self._cache.get(row)
        if found is None:
            found = torch.from_numpy(decode(self._paths[row], self._shape).copy())
            if len(self._cache) >= self._capacity:
                self._cache.pop(next(iter(self._cache)))  # the oldest entry: dicts keep their order
            self._cache[row] = found
        return found

    def subset(self, rows: torch.Tensor) -> LazyImages:
        """These images as lazy inputs of their own."""
        return LazyImages([self._paths[row] for row in rows.tolist()], self._shape)


def with_progress(items: Sequence[Item], what: str) -> Iterator[Item]:
    """Yield the items; if there are many, show a progress bar on a terminal and a single line elsewhere."""
    if len(items) < MIN_ITEMS_FOR_PROGRESS:
        yield from items
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import track

        yield from track(items, description=what, console=Console(stderr=True), transient=True)
    else:
        print(f"{what}: {len(items):,}", file=sys.stderr, flush=True)
        yield from items


def image_inputs(paths: Sequence[ImageFile], shape: tuple[int, int, int], lazy: bool | None = None) -> Inputs:
    """Images decoded into memory if they take up to 512 MB, else lazy ones."""
    if lazy or (lazy is None and len(paths) * int(np.prod(shape)) > MAX_IN_MEMORY):
        return LazyImages(paths, shape)
    out = np.empty((len(paths), *shape), np.uint8)
    for i, path in enumerate(with_progress(paths, "Decoding images")):
        out[i] = decode(path, shape)
    return ArrayInputs(torch.from_numpy(out))


LAYOUT = "class/image or client/class/image, optionally below train and test"


def load_imagefolder(spec: DataSpec) -> RawData:
    """class/image or client/class/image, optionally below train and test folders."""
    spec.allow_options(("size",))
    base = spec.file
    train, test = base, None
    if (base / "train").is_dir():
        train = base / "train"
        test = next((base / name for name in ("test", "val", "valid") if (base / name).is_dir()), None)
    paths = [_image_paths(folder) for folder in (train, test) if folder is not None]
    depth = _depth(base, [path for part in paths for path in part])
    labels = [[path[-2] for path in part] for part in paths]
    y, y_test, classes = encode_categories(labels[0], labels[1] if test else None, f"class of {base}")
    user: Ints | None = None
    user_test: Ints | None = None
    users = None
    if depth == 3:
        clients = [[path[0] for path in part] for part in paths]
        user, user_test, users = encode_categories(clients[0], clients[1] if test else None, f"client of {base}")
    first = [train.joinpath(*path) for path in paths[0]]
    shape = spec.image_shape or common_shape(first, spec.positive_int("size"))
    made = Samples(image_inputs(first, shape), torch.from_numpy(y), user)
    second = None
    if test is not None and y_test is not None:
        second_paths = [test.joinpath(*path) for path in paths[1]]
        second = Samples(image_inputs(second_paths, shape), torch.from_numpy(y_test), user_test)
    # A run's shape, unlike the images' own, may require conversions that the user should know of.
    notes = conversion_notes(first, shape) if spec.image_shape else ()
    return RawData(base.name or "imagefolder", made, second, classes, users, notes=notes)


def _image_paths(folder: Path) -> list[tuple[str, ...]]:
    """The parts of every image's path below a folder, sorted because the order on disk is arbitrary."""
    found = []
    for parent, _, files in os.walk(folder):
        above = Path(parent).relative_to(folder).parts
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


LIST_HEADERS = frozenset(("path", "file", "filename", "image", "image_path", "image_id"))


@dataclass(frozen=True)
class _ListFile:
    """The columns of a list file."""

    paths: list[Path]
    labels: list[str]
    users: list[str] | None


def load_list(spec: DataSpec) -> RawData:
    """A text file of image paths, labels and optionally users (ImageNet-LT, iNaturalist-User); decoded on access."""
    spec.allow_options(("test", "size", "root"))
    file = spec.file
    train, test = _read_lists(spec)
    if test is not None and (train.users is None) != (test.users is None):
        raise DataError(f"{file} and its test list must both name users or both name none.")
    second = test.labels if test else None
    y, y_test, classes = encode_categories(_int_or_text(train.labels), _int_or_text(second), f"labels of {file}")
    user: Ints | None = None
    user_test: Ints | None = None
    users = None
    if train.users is not None:
        others = test.users if test else None
        user, user_test, users = encode_categories(_int_or_text(train.users), _int_or_text(others), f"users of {file}")
    shape = spec.image_shape or common_shape(train.paths[:200], spec.positive_int("size"))
    first = Samples(image_inputs(train.paths, shape, lazy=True), torch.from_numpy(y), user)
    if test is None or y_test is None:
        return RawData(file.stem, first, None, classes, users)
    tested = Samples(image_inputs(test.paths, shape, lazy=True), torch.from_numpy(y_test), user_test)
    return RawData(file.stem, first, tested, classes, users)


def listed_images(spec: DataSpec) -> list[Path]:
    """The images that a list, and its list of test images, name."""
    train, test = _read_lists(spec)
    return [*train.paths, *(test.paths if test is not None else ())]


def _read_lists(spec: DataSpec) -> tuple[_ListFile, _ListFile | None]:
    """The lists of training images and, if there is one, of test images."""
    root = Path(spec.options["root"]).expanduser() if "root" in spec.options else None
    if "test" not in spec.options:
        return _read_list(spec.file, root), None
    other = spec.file.parent / Path(spec.options["test"]).expanduser()
    if not other.exists():
        raise DataError(f"data {spec.text!r}: there is no {other.absolute()}.")
    return _read_list(spec.file, root), _read_list(other, root)


def _int_or_text(texts: list[str] | None) -> list[int] | list[str] | None:
    """Convert texts to whole numbers if all of them are, so that 10 sorts after 9."""
    if texts is None:
        return None
    try:
        return [int(text) for text in texts]
    except ValueError:
        return texts


def _read_list(file: Path, root: Path | None) -> _ListFile:
    """Read a list file; its separator is the first of tab, comma and space that occurs in the first line."""
    try:
        text = read_bytes(file).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{file} is not UTF-8 text; lines of path, label and user are expected.") from None
    lines = [line.strip() for line in text.splitlines()]
    numbered = [(i, line) for i, line in enumerate(lines, 1) if line and not line.startswith("#")]
    if not numbered:
        raise DataError(f"{file} is empty; lines of path, label and user are expected.")
    first = numbered[0][1]
    separator = "\t" if "\t" in first else "," if "," in first else None
    rows = [(i, [part.strip() for part in line.split(separator)]) for i, line in numbered]
    if rows[0][1][0].lower() in LIST_HEADERS:
        rows = rows[1:]
    width = len(rows[0][1]) if rows else 0
    for i, row in rows:
        if len(row) != width or width not in (2, 3) or "" in row:
            raise DataError(f"{file}, line {i}: path, label and (in every line or in none) a user are expected.")
    if not rows:
        raise DataError(f"{file} has a header and no lines.")
    base = root or file.parent
    paths = [base / row[0] for _, row in rows]
    if not paths[0].exists():
        raise DataError(f"{file} names {paths[0].absolute()}, which does not exist; set root=FOLDER in the spec.")
    return _ListFile(paths, [row[1] for _, row in rows], [row[2] for _, row in rows] if width == 3 else None)
