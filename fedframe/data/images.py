"""Image files -> pixels: one size for all, decoded at once or, where they would not fit, when asked for."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt
import torch

from fedframe.data.source import ArrayInputs, Inputs
from fedframe.errors import DataError
from fedframe.util.progress_bar import shown

SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"))
GREY = ("1", "L", "LA", "I;16")
DEFAULT_SIZE = 64
LOOK_AT = 2000  # files whose headers decide on size and channels
IN_MEMORY = 512 * 2**20  # bytes of pixels up to which a set is decoded at once
CACHE = 64 * 2**20  # bytes of pixels that a lazy set keeps


def pillow() -> ModuleType:
    """PIL.Image, or the sentence that says how to get it."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError("reading image files needs pillow: pip install 'fedframe[images]'.") from None
    return Image


def common_shape(paths: Sequence[Path], size: int | None) -> tuple[int, int, int]:
    """(H, W, C) for a set: the size asked for, or the images' own if they are alike, or 64x64.

    One channel if all images are grey, else three.
    """
    image = pillow()
    step = max(1, len(paths) // LOOK_AT)
    sizes, grey = set(), True
    for path in paths[::step]:
        try:
            with image.open(path) as file:
                sizes.add((file.height, file.width))
                grey &= file.mode in GREY
        except (OSError, ValueError, image.DecompressionBombError) as error:
            raise DataError(f"{path} cannot be read as an image ({error}).") from None
    height, width = (size, size) if size else sizes.pop() if len(sizes) == 1 else (DEFAULT_SIZE, DEFAULT_SIZE)
    return height, width, 1 if grey else 3


def fitted(paths: Sequence[Path], shape: tuple[int, int, int]) -> tuple[str, ...]:
    """Sentences on images that are not of this shape and are made so."""
    image = pillow()
    looked = paths[:: max(1, len(paths) // LOOK_AT)]
    sizes: Counter[str] = Counter()
    recoloured = 0
    for path in looked:
        with contextlib.suppress(OSError, ValueError), image.open(path) as file:  # decoding says what is wrong
            if (file.height, file.width) != shape[:2]:
                sizes[f"{file.height}x{file.width}"] += 1
            recoloured += (file.mode in GREY) != (shape[2] == 1)
    found = []
    if sizes:
        examples = ", ".join(size for size, _ in sizes.most_common(3))
        found.append(
            f"{sizes.total():,} of {len(looked):,} images are not {shape[0]}x{shape[1]} (but {examples}): each is "
            "scaled until it covers that, and the middle is cut out."
        )
    if recoloured:
        before, after = ("coloured", "grey") if shape[2] == 1 else ("grey", "RGB")
        found.append(f"{recoloured:,} of {len(looked):,} images are {before} and become {after}.")
    return tuple(found)


def decode(path: Path, shape: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
    """Pixels of one file: scaled until it covers the shape, the middle cut out."""
    image = pillow()
    height, width, channels = shape
    mode = "L" if channels == 1 else "RGB"
    try:
        with image.open(path) as file:
            file.draft(mode, (2 * width, 2 * height))  # lets JPEG skip detail that scaling would drop anyway
            picture = file.convert(mode)
            if picture.size != (width, height):
                scale = max(width / picture.width, height / picture.height)
                wide = max(width, round(picture.width * scale))
                high = max(height, round(picture.height * scale))
                left, top = (wide - width) // 2, (high - height) // 2
                picture = picture.resize((wide, high), image.Resampling.BILINEAR)
                picture = picture.crop((left, top, left + width, top + height))
            return np.asarray(picture, np.uint8).reshape(shape)
    except (OSError, ValueError, SyntaxError, image.DecompressionBombError) as error:
        raise DataError(f"{path} is damaged or no image ({error}).") from None


class LazyImages:
    """Images decoded when asked for; of those the newest are kept, up to 64 MB."""

    def __init__(self, paths: Sequence[Path], shape: tuple[int, int, int]) -> None:
        self._paths, self._shape = paths, shape
        self._kept: dict[int, torch.Tensor] = {}
        self._room = max(1, CACHE // int(np.prod(shape)))

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
            out[i] = self._one(row)
        return out

    def _one(self, row: int) -> torch.Tensor:
        found = self._kept.get(row)
        if found is None:
            found = torch.from_numpy(decode(self._paths[row], self._shape).copy())
            if len(self._kept) >= self._room:
                self._kept.pop(next(iter(self._kept)))  # a dict gives its oldest entry first
            self._kept[row] = found
        return found

    def subset(self, rows: torch.Tensor) -> LazyImages:
        """The same images, fewer of them."""
        return LazyImages([self._paths[row] for row in rows.tolist()], self._shape)


def image_inputs(paths: Sequence[Path], shape: tuple[int, int, int], lazy: bool | None = None) -> Inputs:
    """Images in memory if they take up to 512 MB there, else lazy ones."""
    if lazy or (lazy is None and len(paths) * int(np.prod(shape)) > IN_MEMORY):
        return LazyImages(paths, shape)
    out = np.empty((len(paths), *shape), np.uint8)
    for i, path in enumerate(shown(paths, "Decoding images")):
        out[i] = decode(path, shape)
    return ArrayInputs(torch.from_numpy(out))
