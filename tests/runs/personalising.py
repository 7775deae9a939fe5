"""Finished runs and the data of a client that was not in them, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.datasets import load_digits

import fedframe

SMALL: dict[str, Any] = {"workers": 1, "progress": False}
RECIPES = ("fedavg", "fedetf", "fedloge", "spherefed", "scaffold", "fedavg+frozen_random")
Arrays = dict[str, npt.NDArray[Any]]


def split_digits() -> tuple[Arrays, Arrays]:
    """Digits of five clients, and of a sixth that sees little but 0, 1 and 2 and stays outside."""
    digits = load_digits()
    x, y = digits.images.astype(np.uint8), digits.target
    draw = np.random.default_rng(0)
    outside = draw.random(len(y)) < np.where(y <= 2, 0.5, 0.02)
    user = draw.integers(0, 5, (~outside).sum())
    return {"x": x[~outside], "y": y[~outside], "user": user}, {"x": x[outside], "y": y[outside]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of every recipe, without the sixth client."""
    folder = tmp_path_factory.mktemp("runs")
    inside, outside = split_digits()
    np.savez(folder / "inside.npz", **inside)  # type: ignore[arg-type]
    np.savez(folder / "north.npz", **outside)  # type: ignore[arg-type]
    for method in RECIPES:
        fedframe.run(method, data=f"npz:{folder / 'inside.npz'}", rounds=2, out=folder / method, **SMALL)
    return folder


TABLE = "age,sex,stage,hospital,target\n"


def write_table(path: Path, rows: int, seed: int, stages: str, header: str = TABLE) -> None:
    draw = np.random.default_rng(seed)
    lines = []
    for i in range(rows):
        sick = bool(draw.integers(2))
        age = "" if i == 3 else f"{draw.normal(70 if sick else 40, 5):.1f}"
        lines.append(
            f"{age},{draw.choice(['f', 'm'])},{draw.choice(list(stages))},h{i % 3},{'sick' if sick else 'well'}"
        )
    path.write_text(header + "\n".join(lines) + "\n")
