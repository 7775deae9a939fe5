"""Small jobs that tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedframe.core.job import Job
from fedframe.jobs.build import JobMaker
from fedframe.jobs.gather import gather
from fedframe.runs.progress import Display
from fedframe.util.files import read_json


def blobs(clients: int = 4, each: int = 24, classes: int = 3, dim: int = 5, seed: int = 0) -> dict[str, Any]:
    """Classes that a small net can tell apart, with a user per sample."""
    draw = np.random.default_rng(seed)
    centres = draw.normal(0, 3, (classes, dim))
    y = draw.integers(0, classes, clients * each)
    x = (centres[y] + draw.normal(0, 1, (len(y), dim))).astype(np.float32)
    y_test = np.repeat(np.arange(classes), 20)
    x_test = (centres[y_test] + draw.normal(0, 1, (len(y_test), dim))).astype(np.float32)
    user = np.repeat(np.arange(clients), each)
    return {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test, "user_train": user}


def images(side: int = 8, count: int = 60, channels: int = 3, seed: int = 0) -> dict[str, Any]:
    """Small random pictures of two classes."""
    draw = np.random.default_rng(seed)
    y = np.arange(count) % 2
    x = (
        draw.integers(0, 128, (count, side, side, channels), dtype=np.uint8)
        + (100 * y).astype(np.uint8)[:, None, None, None]
    )
    return {"x_train": x, "y_train": y, "x_test": x[:20], "y_test": y[:20]}


def make_job(folder: Path, data: object = None, model: Any = "mlp:8", **settings: Any) -> Job:
    """A job on small data, ready to be trained."""
    data = blobs() if data is None else data
    given = {"data": "python", "partition": "user", "local_test": 0.25, "rounds": 2, "batch": 8, "workers": 1}
    named = model if isinstance(model, str) else "python"
    return JobMaker(gather({**given, "model": named, **settings}, None), data, model).make(folder)


class Recorder(Display):
    """Keeps notes and rounds instead of showing them."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.rounds: list[int] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def round(self, record: Any) -> None:
        self.rounds.append(record.round)


def nothing(*_: object) -> None:
    """A callback that does nothing."""


def same_file(first: Path, second: Path) -> bool:
    """Whether two files have the same bytes."""
    return first.read_bytes() == second.read_bytes()


def equal_states(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    """Whether two sets of named tensors are bit for bit the same."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def comparable_scores(run: Path) -> dict[str, Any]:
    """A run's scores without F1, for which the server needs the confusion of every client: nodes send only the sum."""
    scores: dict[str, Any] = read_json(run / "summary.json")["scores"]
    return {
        name: {key: value for key, value in each.items() if key not in ("f1", "f1_weighted")}
        for name, each in scores.items()
    }
