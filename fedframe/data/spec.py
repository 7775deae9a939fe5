"""What a loader is asked for (`DataSpec`) and what it returns (`RawData`), before test split and normalisation."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fedframe.data.source import Samples
from fedframe.errors import DataError, SettingError, nearest


@dataclass(frozen=True)
class Form:
    """What the data of a finished run looked like; data that come later take on this form, nothing is fitted anew."""

    classes: tuple[str, ...]
    shape: tuple[int, ...]  # of one stored sample: (H, W, C) or (d,)
    columns: tuple[str, ...] | None
    mean: torch.Tensor
    std: torch.Tensor


@dataclass(frozen=True)
class Request:
    """One data spec taken apart, e.g. list:train.txt?test=test.txt&size=64."""

    spec: str
    name: str
    path: Path | None
    options: dict[str, str] = field(default_factory=dict)
    data_dir: Path | None = None
    seed: int = 0
    label: str | None = None
    client_column: str | None = None
    download: bool = True
    form: Form | None = None

    @property
    def file(self) -> Path:
        """The path behind the colon."""
        if self.path is None:
            raise SettingError(f"data {self.spec!r} needs a path behind the colon, e.g. {self.name}:my-data.")
        if not self.path.exists():
            raise DataError(f"data {self.spec!r}: there is no {self.path.absolute()}.")
        return self.path

    def allow(self, known: Collection[str]) -> None:
        """Refuse options that this source does not know."""
        for option in self.options:
            if option not in known:
                hint = nearest(option, known) if known else "it takes no options."
                raise SettingError(f"data {self.spec!r} has the unknown option {option!r}: {hint}")

    def whole(self, option: str) -> int | None:
        """A whole number above 0, or None if the option is not there."""
        text = self.options.get(option)
        if text is None:
            return None
        if not text.isdecimal() or int(text) < 1:
            raise SettingError(f"data {self.spec!r}: {option} must be a whole number above 0, e.g. {option}=64.")
        return int(text)

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """The shape that images must take on, if a run has fixed it."""
        if self.form is None:
            return None
        shape = self.form.shape
        if len(shape) != 3:
            raise DataError(
                f"data {self.spec!r} are images, but the run takes vectors of {shape[0]} numbers; use data = npz:PATH."
            )
        size = self.whole("size")
        if size is not None and shape[:2] != (size, size):
            raise SettingError(
                f"data {self.spec!r}: the run's images are {shape[0]}x{shape[1]}, not {size}x{size}; leave size out."
            )
        return shape[0], shape[1], shape[2]


@dataclass(frozen=True)
class Raw:
    """Samples as a loader found them."""

    name: str
    train: Samples
    test: Samples | None
    classes: tuple[str, ...]
    user_names: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None  # tables only; NaN then means missing
    notes: tuple[str, ...] = ()  # sentences on what was made of the samples


Loader = Callable[[Request], Raw]
