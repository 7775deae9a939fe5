"""The four jobs: random samples in an npz file, dealt out evenly; only the shapes matter for speed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

CLASSES = 10


@dataclass(frozen=True)
class Job:
    name: str
    clients: int
    samples_each: int
    per_round: int
    batch: int
    shape: tuple[int, ...]  # of a stored sample: (height, width, channels) or (numbers,)
    model: str
    lr: float = 0.01

    @property
    def samples(self) -> int:
        return self.clients * self.samples_each

    @property
    def steps_each(self) -> int:
        return -(-self.samples_each // self.batch)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """What a net sees of a sample."""
        return (self.shape[2], *self.shape[:2]) if len(self.shape) == 3 else self.shape

    def __str__(self) -> str:
        size = "x".join(map(str, self.shape))
        return (
            f"`{self.model}`, {self.clients} clients x {self.samples_each} of {size}, {self.per_round} a round, "
            f"batch {self.batch}"
        )


GREY, CIFAR, VECTOR = (28, 28, 1), (32, 32, 3), (32,)
JOBS = {
    job.name: job
    for job in (
        Job("A", 100, 600, 10, 32, GREY, "cnn"),
        Job("B", 1000, 60, 50, 10, GREY, "cnn"),
        Job("C-resnet20", 20, 2500, 2, 64, CIFAR, "resnet20"),
        Job("C-vgg11", 20, 2500, 2, 64, CIFAR, "vgg11"),
        Job("D", 500, 40, 50, 10, VECTOR, "mlp"),
    )
}


def write_data(folder: Path, job: Job, kind: str = "uint8") -> Path:
    """Write the job's file once; `kind` is the number type of images, vectors are float32."""
    path = folder / f"{job.samples}-{'x'.join(map(str, job.shape))}-{kind}.npz"
    if not path.exists():
        draw = np.random.default_rng(0)
        values: npt.NDArray[Any]
        if len(job.shape) == 1:
            values = draw.standard_normal((job.samples, *job.shape), dtype=np.float32)
        else:
            values = draw.integers(0, 256, (job.samples, *job.shape), dtype=np.uint8).squeeze()
            if kind == "float32":
                values = values.astype(np.float32) / np.float32(255)
        labels = draw.integers(0, CLASSES, job.samples)
        np.savez(path, x_train=values, y_train=labels, x_test=values[:1000], y_test=labels[:1000])
    return path
