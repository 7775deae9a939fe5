"""A node's own data as a survey sees them: names in the clear, and numbers that leave only as parts of sums.

Nothing that leaves is about fewer than `least` rows: a class, a category, a code or a size of images is named only if
so many rows have it, counts are rounded down to multiples of `least`, numbers are clipped to the `least`-th smallest
and largest before they are added up, and a cell of a histogram is empty or has at least so many rows.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedframe.data.arrays import encode_categories
from fedframe.data.columns import FEW_CODES, Column
from fedframe.data.images import GREY, SUFFIXES, listed_images, open_image, pillow
from fedframe.data.load import load_raw, read_spec
from fedframe.data.source import Ints
from fedframe.data.spec import DataSchema, DataSpec, RawData
from fedframe.data.tables import read_columns
from fedframe.errors import DataError, SettingError

Floats = npt.NDArray[np.float64]
LEAST = 5  # rows below which nothing is told
CELLS = 64  # of the histograms that medians come from
REACH = 3.0  # standard deviations on either side of the mean that the cells cover; the outer ones are open
MOST_IMAGES = 2000  # that are looked at for sizes, mean and variance
MOST_NAMES = 1000  # classes or categories of one column that are named
NUMBER, CATEGORY, UNUSABLE = "number", "category", "unusable"
TABLE, IMAGES, ARRAYS = "table", "images", "arrays"
BYTE_SCALE = 8  # pixels of one byte are below 2^8


def check_least(least: int) -> int:
    """Refuse a bound below the one that all have."""
    if least < LEAST:
        raise SettingError(
            f"least = {least}: a survey reports nothing about fewer than {LEAST} rows; use {LEAST} or more."
        )
    return least


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers: clipped values, NaN where missing."""

    values: Floats
    scale: int  # all values are at most 2^scale
    codes: tuple[str, ...] = ()  # if it holds few whole numbers: those that enough rows have


@dataclass(frozen=True)
class CategoryColumn:
    """A column of texts, "" where missing."""

    values: npt.NDArray[Any]
    names: tuple[str, ...]  # those that enough rows have


@dataclass
class OwnData:
    """What a node knows of its data before an agreement."""

    spec: DataSpec
    kind: str
    least: int
    labels: Ints
    classes: tuple[str, ...]  # all that there are; told are those that enough rows have
    label: str | None = None  # the label's column
    numbers: dict[str, NumberColumn] = field(default_factory=dict)
    categories: dict[str, CategoryColumn] = field(default_factory=dict)
    unusable: dict[str, str] = field(default_factory=dict)  # why a column cannot be used as it is
    silent: list[str] = field(default_factory=list)  # columns with too few values to be told of
    shape: tuple[int, ...] = ()  # of arrays
    scale: int = BYTE_SCALE
    sizes: tuple[tuple[int, int], ...] = ()  # of images, the most frequent first
    channels: int = 3

    @property
    def rows(self) -> int:
        """How many samples there are."""
        return len(self.labels)

    @property
    def told_classes(self) -> list[str]:
        """The classes that enough rows have."""
        counts = np.bincount(self.labels, minlength=len(self.classes))
        return [name for name, count in zip(self.classes, counts.tolist(), strict=True) if count >= self.least]

    # -- what leaves in the clear --------------------------------------------------------------------------------------
    def form(self) -> dict[str, Any]:
        """Names and kinds, without any count."""
        found: dict[str, Any] = {"kind": self.kind, "classes": self.told_classes, "least": self.least}
        if self.kind == TABLE:
            columns: dict[str, Any] = {
                name: {"kind": NUMBER, "scale": each.scale, "codes": list(each.codes)}
                for name, each in self.numbers.items()
            }
            columns |= {name: {"kind": CATEGORY, "values": list(e.names)} for name, e in self.categories.items()}
            columns |= {name: {"kind": UNUSABLE} for name in self.unusable}
            return {**found, "label": self.label, "columns": columns}
        if self.kind == IMAGES:
            return {**found, "sizes": [list(size) for size in self.sizes], "channels": self.channels}
        return {**found, "shape": list(self.shape), "scale": self.scale}

    # -- what leaves in sums -------------------------------------------------------------------------------------------
    def rounded(self, count: int) -> int:
        """A count as it may leave."""
        return count - count % self.least

    def class_counts(self, classes: Sequence[str]) -> list[int]:
        """Rows of each class, rounded down."""
        counts = Counter(self.classes[label] for label in self.labels.tolist())
        return [self.rounded(counts[name]) for name in classes]

    def category_counts(self, name: str, values: Sequence[str]) -> list[int]:
        """Rows of each category of a column, rounded down; numbers count as the texts of whole numbers."""
        if name in self.categories:
            counts = Counter(self.categories[name].values.tolist())
        elif name in self.numbers:
            here = self.numbers[name].values
            counts = Counter(whole_text(value) for value in here[~np.isnan(here)].tolist())
        else:
            return [0] * len(values)
        return [self.rounded(counts[value]) for value in values]

    def missing(self, name: str) -> int:
        """Rows without a value, rounded down; all of them where the column is not there or cannot be used."""
        if name in self.numbers:
            return self.rounded(int(np.isnan(self.numbers[name].values).sum()))
        if name in self.categories:
            return self.rounded(int((self.categories[name].values == "").sum()))
        return self.rounded(self.rows)

    def present(self, name: str) -> Floats:
        """Values of a column of numbers, as many as a multiple of `least`; none where the column is not there."""
        if name not in self.numbers:
            return np.empty(0)
        values = self.numbers[name].values
        here = values[~np.isnan(values)]
        return here[: self.rounded(len(here))]

    def moments(self, shape: Sequence[int]) -> tuple[Floats, Floats]:
        """Of arrays and images: every sample's mean and mean of squares by channel, as shares of 2^scale."""
        raw = self.load(tuple(shape))
        count = len(raw.train) if self.kind == ARRAYS else min(len(raw.train), MOST_IMAGES)
        rows = torch.linspace(0, len(raw.train) - 1, self.rounded(count)).long()
        first, second = [], []
        for part in torch.split(rows, 256):
            values = raw.train.x.take(part).double().div_(2.0**self.scale).clamp_(-1, 1)
            flat = values.reshape(len(part), -1, values.shape[-1])
            first.append(flat.mean(1))
            second.append(flat.square().mean(1))
        return torch.cat(first).numpy(), torch.cat(second).numpy()

    def load(self, shape: tuple[int, ...]) -> RawData:
        """The samples, images in the agreed shape."""
        if self.kind != IMAGES:
            return load_raw(self.spec)
        ones = torch.ones(shape[-1])
        return load_raw(dataclasses.replace(self.spec, schema=DataSchema(self.classes, shape, None, ones, ones)))


# -- reading -----------------------------------------------------------------------------------------------------------
def read_own_data(data: str, least: int, label: str | None, seed: int = 0) -> OwnData:
    """Read a node's data for a survey; columns that cannot be used as they are do not stop it."""
    spec = read_spec(data, None, seed, label)
    found = read_table(spec, least) if spec.name in ("csv", "parquet") else read_samples(spec, least)
    if found.rows < 2 * least or not found.told_classes:
        raise DataError(
            f"data {data!r} have {found.rows} rows, or no class with {least} of them; a survey tells of no fewer, so "
            "that it would tell nothing: use more data, or a smaller --least (not below 5)."
        )
    return found


def read_table(spec: DataSpec, least: int) -> OwnData:
    """A table: what each column is, with numbers clipped."""
    table, (label, *more), columns = read_columns(spec)
    if more:
        raise SettingError(f"{spec.path}: a survey knows one label column with classes; set label to one of them.")
    if (table[label] == "" if table[label].dtype.kind != "f" else np.isnan(table[label])).any():
        raise DataError(f"{spec.path}: the column {label!r} has rows without a value; every row needs one.")
    labels, _, classes = encode_categories(table[label], None, f"column {label!r} of {spec.path}")
    found = OwnData(spec, TABLE, least, labels, classes, label)
    for column in columns:
        add_column(found, column, table[column.name])
    if not found.numbers and not found.categories:
        raise DataError(f"{spec.path} has no column that can be used: {'; '.join(found.unusable.values())}")
    return found


def add_column(found: OwnData, column: Column, values: npt.NDArray[Any]) -> None:
    """Add a column to what is known."""
    here = values[~np.isnan(values)] if values.dtype.kind == "f" else values[values != ""]
    if column.problem:
        found.unusable[column.name] = column.problem
    elif len(here) < (2 if values.dtype.kind == "f" else 1) * found.least:  # numbers are clipped from both ends
        found.silent.append(column.name)
    elif values.dtype.kind == "f":
        if np.isinf(here).any():
            raise DataError(f"{found.spec.path}: the column {column.name!r} holds infinity; numbers must be finite.")
        counts = Counter(whole_text(value) for value in here.tolist())
        whole = len(counts) <= FEW_CODES and bool((here == np.rint(here)).all())
        codes = tuple(sorted(v for v, n in counts.items() if n >= found.least)) if whole else ()
        clipped = clip_extremes(values.astype(np.float64), found.least)
        largest = float(np.nanmax(np.abs(clipped)))
        scale = math.frexp(largest)[1] if largest else 0
        found.numbers[column.name] = NumberColumn(clipped, scale, codes)
    else:
        counts = Counter(here.tolist())
        names = tuple(sorted(value for value, count in counts.items() if count >= found.least))[:MOST_NAMES]
        if names:
            found.categories[column.name] = CategoryColumn(values, names)
        else:
            found.silent.append(column.name)


def clip_extremes(values: Floats, least: int) -> Floats:
    """Values beyond the `least`-th smallest and largest become these, so that no single one can be read off a sum."""
    here = np.sort(values[~np.isnan(values)])
    return np.clip(values, here[least - 1], here[-least])


def whole_text(value: float) -> str:
    """A number as the text of a category."""
    return str(int(value)) if value.is_integer() else str(value)


def read_samples(spec: DataSpec, least: int) -> OwnData:
    """Images in files, or arrays."""
    raw = load_raw(spec)
    labels, classes = raw.train.y.numpy(), raw.classes
    if spec.name in ("imagefolder", "list"):
        sizes, channels = image_sizes(spec, least)
        return OwnData(spec, IMAGES, least, labels, classes, sizes=sizes, channels=channels)
    shape = tuple(raw.train.x.shape)
    scale = BYTE_SCALE
    some = raw.train.x.take(torch.arange(min(1, len(raw.train))))
    if some.dtype != torch.uint8:
        parts = torch.split(torch.arange(len(raw.train)), 1024)
        peaks = torch.cat([raw.train.x.take(part).abs().flatten(1).amax(1) for part in parts]).double()
        scale = math.frexp(float(peaks.sort(descending=True).values[min(least, len(peaks)) - 1]))[1]
    return OwnData(spec, ARRAYS, least, labels, classes, shape=shape, scale=scale)


def image_sizes(spec: DataSpec, least: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """Sizes that enough images have, the most frequent first, and 3 channels if enough of them are coloured."""
    if spec.name == "list":
        paths = listed_images(spec)
    else:
        paths = sorted(path for path in Path(spec.file).rglob("*") if path.suffix.lower() in SUFFIXES)
    image, sizes, coloured = pillow(), Counter[tuple[int, int]](), 0
    looked = paths[:: max(1, len(paths) // MOST_IMAGES)]
    for path in looked:
        with open_image(image, path) as file:
            sizes[file.height, file.width] += 1
            coloured += file.mode not in GREY
    told = [size for size, count in sizes.most_common() if count >= least]
    if not told:  # every one has another size: the medians of both sides, each rounded to 16
        sides = np.array(list(sizes.elements()))
        told = [tuple(max(16, round(float(side) / 16) * 16) for side in np.median(sides, 0))]  # type: ignore[list-item]
    return tuple(told), 3 if coloured >= least else 1


def merge_cells(counts: Ints, least: int) -> Ints:
    """A histogram in which every cell is empty or has at least `least`: small cells join the next one.

    At every edge fewer than `least` rows are then on the other side than before.
    """
    found, waiting, last = np.zeros_like(counts), 0, -1
    for cell, count in enumerate(counts.tolist()):
        waiting += count
        if waiting >= least:
            found[cell], waiting, last = waiting, 0, cell
    if waiting and last >= 0:
        found[last] += waiting
    return found


def histogram(values: Floats, centre: float, width: float, least: int) -> Ints:
    """Rows by cell: CELLS of them over REACH standard deviations, the outer ones open."""
    if not len(values):
        return np.zeros(CELLS, np.int64)
    cells = np.floor((values - centre) / width / (2 * REACH) * CELLS + CELLS / 2)
    counts = np.bincount(np.clip(cells, 0, CELLS - 1).astype(np.int64), minlength=CELLS)
    return merge_cells(counts, least)


def median_of(counts: Floats, centre: float, width: float) -> float:
    """The median of a summed histogram, by a straight line within its cell."""
    total = counts.sum()
    if total <= 0:
        return centre
    cumulated = counts.cumsum()
    cell = int(np.searchsorted(cumulated, total / 2))
    before = cumulated[cell] - counts[cell]
    place = cell + (total / 2 - before) / counts[cell]
    return float(centre + (place - CELLS / 2) / CELLS * 2 * REACH * width)
