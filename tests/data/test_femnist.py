from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedframe.data import load_source, make_federation
from fedframe.errors import DataError
from tests.data.conftest import sentence

PIXELS = np.random.default_rng(0).integers(256, size=(12, 784))


def leaf(users: list[str], each: int = 4) -> dict[str, Any]:
    data = {user: {"x": (PIXELS[:each] / 255).tolist(), "y": [0, 10, 36, 61][:each]} for user in users}
    return {"users": users, "num_samples": [each] * len(users), "user_data": data}


def write(folder: Path, name: str, content: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder / name


def test_writers_are_natural_clients(tmp_path: Path) -> None:
    write(tmp_path / "femnist" / "train", "all_data_0_niid_0_keep_0_train_9.json", leaf(["f0001", "f0002"]))
    write(tmp_path / "femnist" / "train", "all_data_1_niid_0_keep_0_train_9.json", leaf(["f0003"]))
    write(tmp_path / "femnist" / "test", "all_data_0_niid_0_keep_0_test_9.json", leaf(["f0002", "f0004"], 2))
    source = load_source("femnist", data_dir=tmp_path)
    assert (len(source.train), len(source.test or ())) == (12, 4)
    assert [source.classes[c] for c in source.train.y[:4].tolist()] == ["0", "A", "a", "z"]
    assert source.user_names == ("f0001", "f0002", "f0003", "f0004")
    raw = source.train.x.take(torch.tensor([1]))
    assert raw.dtype == torch.uint8
    assert raw.flatten().tolist() == PIXELS[1].tolist()
    federation = make_federation(source, partition="user", clients=None, seed=0)
    assert list(federation.names) == ["f0001", "f0002", "f0003"]


def test_pixels_that_are_no_bytes_stay_fractions(tmp_path: Path) -> None:
    content = leaf(["a"])
    content["user_data"]["a"]["x"][0][0] = 0.12345
    write(tmp_path / "train", "a.json", content)
    write(tmp_path / "train", "b.json", leaf(["b"]))
    write(tmp_path / "test", "a.json", leaf(["b"]))
    raw = load_source("femnist", data_dir=tmp_path).train.x.take(torch.tensor([1, 5]))
    assert raw.dtype == torch.float32
    assert torch.equal(raw[0], raw[1])


def test_damaged_files_are_named(tmp_path: Path) -> None:
    short, odd, wrong = leaf(["a"]), leaf(["a"]), leaf(["a"])
    short["user_data"]["a"]["y"] = [1]
    odd["user_data"]["a"]["x"][0] = [0.5] * 783
    wrong["user_data"]["a"]["y"] = [0, 1, 2, 62]
    for bad in (
        json.dumps(leaf(["a"]))[:-30],
        "[]",
        "{}",
        {"users": ["a"], "user_data": {}},
        short,
        odd,
        wrong,
    ):
        path = write(tmp_path / "train", "a.json", bad)
        assert str(path) in sentence(lambda: load_source("femnist", data_dir=tmp_path), DataError)
    bad_pixel = leaf(["a"])
    bad_pixel["user_data"]["a"]["x"][0][0] = float("nan")
    write(tmp_path / "train", "a.json", bad_pixel)
    assert "NaN" in sentence(lambda: load_source("femnist", data_dir=tmp_path), DataError)
    write(tmp_path / "train", "a.json", leaf([]))
    assert "no samples" in sentence(lambda: load_source("femnist", data_dir=tmp_path), DataError)


def test_a_missing_set_says_how_to_make_it(tmp_path: Path) -> None:
    assert "LEAF" in sentence(lambda: load_source("femnist", data_dir=tmp_path), DataError)
