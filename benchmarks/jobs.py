"""The two jobs: random 28x28 images in an npz file, dealt out evenly; only the shapes matter for speed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SAMPLES = 60_000


@dataclass(frozen=True)
class Job:
    name: str
    clients: int
    per_round: int
    batch: int
    lr: float = 0.01

    @property
    def samples_each(self) -> int:
        return SAMPLES // self.clients

    @property
    def steps_each(self) -> int:
        return -(-self.samples_each // self.batch)


JOBS = {"A": Job("A", 100, 10, 32), "B": Job("B", 1000, 50, 10)}


def write_data(folder: Path, kind: str = "uint8") -> Path:
    """Write the job file once; `kind` is the number type of the images."""
    path = folder / f"job-{kind}.npz"
    if not path.exists():
        draw = np.random.default_rng(0)
        images: npt.NDArray[Any] = draw.integers(0, 256, (SAMPLES, 28, 28), dtype=np.uint8)
        if kind == "float32":
            images = images.astype(np.float32) / np.float32(255)
        labels = draw.integers(0, 10, SAMPLES)
        np.savez(path, x_train=images, y_train=labels, x_test=images[:1000], y_test=labels[:1000])
    return path
