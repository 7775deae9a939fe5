"""What a loader is asked for (`DataSpec`) and what it returns (`RawData`), before test split and normalisation."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fedframe.data.source import Samples
from fedframe.data.target import Target
from fedframe.errors import DataError, SettingError, nearest


@dataclass(frozen=True)
class DataSchema:
    """The form of a finished run's data. New data for the run are converted to it; no statistics are fitted again."""

    classes: tuple[str, ...]  # of another task than classification: none, its outputs are named by the target
    shape: tuple[int, ...]  # of one stored sample: (H, W, C) or (d,)
    columns: tuple[str, ...] | None
    mean: torch.Tensor
    std: torch.Tensor
    target: Target | None = None  # what is learned, if it is no class

    @property
    def task(self) -> str:
        """What kind of answer is learned."""
        return "classification" if self.target is None else self.target.task

    @property
    def outputs(self) -> tuple[str, ...]:
        """What each number of a model's output is about."""
        return self.classes if self.target is None else self.target.names


@dataclass(frozen=True)
class DataSpec:
    """A parsed data spec, e.g. list:train.txt?test=test.txt&size=64, and the settings that a loader needs."""

    text: str
    name: str
    path: Path | None
    options: dict[str, str] = field(default_factory=dict)
    data_dir: Path | None = None
    seed: int = 0
    label: str | None = None
    client_column: str | None = None
    download: bool = True
    schema: DataSchema | None = None
    task: str = "auto"  # classification, regression, multilabel, or what the labels plainly are

    @property
    def file(self) -> Path:
        """The path after the colon, which must exist."""
        if self.path is None:
            raise SettingError(f"data {self.text!r} needs a path behind the colon, e.g. {self.name}:my-data.")
        if not self.path.exists():
            raise DataError(f"data {self.text!r}: there is no {self.path.absolute()}.")
        if not (self.path.is_file() or self.path.is_dir()):  # reading a pipe would never end
            raise DataError(f"data {self.text!r}: {self.path} is a pipe or a device; give a file or a folder.")
        return self.path

    def allow_options(self, known: Collection[str]) -> None:
        """Refuse options that this source does not have."""
        for option in self.options:
            if option not in known:
                hint = nearest(option, known) if known else "it has no options."
                raise SettingError(f"data {self.text!r} has the unknown option {option!r}: {hint}")

    def positive_int(self, option: str) -> int | None:
        """The option as a whole number above 0, or None if it is not given."""
        text = self.options.get(option)
        if text is None:
            return None
        if not text.isdecimal() or int(text) < 1:
            raise SettingError(f"data {self.text!r}: {option} must be a whole number above 0, e.g. {option}=64.")
        return int(text)

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """The shape that images must be converted to, if a finished run has fixed it."""
        if self.schema is None:
            return None
        shape = self.schema.shape
        if len(shape) != 3:
            raise DataError(
                f"data {self.text!r} are images, but the run takes vectors of {shape[0]} numbers; use data = npz:PATH."
            )
        size = self.positive_int("size")
        if size is not None and shape[:2] != (size, size):
            raise SettingError(
                f"data {self.text!r}: the run's images are {shape[0]}x{shape[1]}, not {size}x{size}; leave size out."
            )
        return shape[0], shape[1], shape[2]


@dataclass(frozen=True)
class RawData:
    """Samples as a loader returns them."""

    name: str
    train: Samples
    test: Samples | None
    classes: tuple[str, ...]
    user_names: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None  # tables only; NaN then means missing
    notes: tuple[str, ...] = ()  # how samples were converted, for the user
    target: Target | None = None  # what is learned, if it is no class; values are in their own units


Loader = Callable[[DataSpec], RawData]
