from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedframe.data import load_source
from fedframe.errors import DataError, SettingError
from fedframe.jobs.inputs import data_files
from fedframe.util.locate import resolve_paths
from tests.data.conftest import sentence

PIXELS = np.random.default_rng(0).integers(256, size=(30, 6, 6), dtype=np.uint8)
LABELS = np.arange(30) % 3


@pytest.fixture
def hub() -> Any:
    return pytest.importorskip("datasets", reason="needs the extra 'datasets': pip install 'fedframe[datasets]'")


def images(hub: Any, rows: range) -> Any:
    """Grey images whose classes are not in the order of the alphabet, with two sites."""
    from PIL import Image

    columns = {
        "image": [Image.fromarray(PIXELS[row]) for row in rows],
        "finding": [int(LABELS[row]) for row in rows],
        "site": ["north" if row < 10 else "south" for row in rows],
    }
    kinds = {
        "image": hub.Image(),
        "finding": hub.ClassLabel(names=["well", "ill", "dead"]),
        "site": hub.Value("string"),
    }
    return hub.Dataset.from_dict(columns, features=hub.Features(kinds))


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "pip install 'fedframe[datasets]'" in sentence(lambda: load_source(f"hf:{tmp_path}"), DataError)


def test_a_folder_becomes_absolute_and_a_name_of_the_hub_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scans").mkdir()
    (tmp_path / "scans" / "a.arrow").write_bytes(b"1")
    monkeypatch.chdir(tmp_path)
    assert resolve_paths("hf:scans?size=8") == f"hf:{tmp_path}/scans?size=8"
    assert resolve_paths("hf:ylecun/mnist") == "hf:ylecun/mnist"
    assert data_files("hf:scans") == [tmp_path / "scans" / "a.arrow"]
    assert data_files("hf:ylecun/mnist") == []


def test_saved_images_are_read_pixel_for_pixel_with_names_and_sites(hub: Any, tmp_path: Path) -> None:
    splits = {"train": range(18), "validation": range(18, 24), "test": range(24, 30)}
    hub.DatasetDict({name: images(hub, rows) for name, rows in splits.items()}).save_to_disk(tmp_path / "scans")
    source = load_source(f"hf:{tmp_path}/scans")
    assert source.classes == ("well", "ill", "dead")
    assert source.user_names == ("north", "south")
    assert torch.equal(source.train.x.take(torch.arange(18))[..., 0], torch.from_numpy(PIXELS[:18]))
    assert source.train.y.tolist() == LABELS[:18].tolist()
    assert source.test is not None
    assert torch.equal(source.test.x.take(torch.arange(6))[..., 0], torch.from_numpy(PIXELS[24:]))
    assert "6 samples of the validation split are set aside" in source.notes[0]
    both = load_source(f"hf:{tmp_path}/scans?val=train&size=3")
    assert len(both.train) == 24
    assert both.input_shape == (1, 3, 3)


def test_a_folder_of_parquet_files_is_read_without_a_network(
    hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(hub.config, "HF_HUB_OFFLINE", True)
    values = np.random.default_rng(1).random((20, 5)).astype(np.float32)
    rows = {"values": values.tolist(), "label": ["a", "b"] * 10}
    (tmp_path / "own").mkdir()
    hub.Dataset.from_dict(rows).to_parquet(tmp_path / "own" / "train.parquet")
    source = load_source(f"hf:{tmp_path}/own", test_share=0.2)
    assert source.classes == ("a", "b")
    assert source.input_shape == (5,)
    assert source.test is not None
    assert len(source.train) + len(source.test) == 20
    kept = source.train.x.take(torch.arange(len(source.train))).numpy()
    assert {tuple(row) for row in kept} <= {tuple(row) for row in values}


def test_what_cannot_be_read_ends_in_a_sentence(hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub.config, "HF_HUB_OFFLINE", True)
    hub.Dataset.from_dict({"age": [1, 2], "label": [0, 1]}).save_to_disk(tmp_path / "table")
    assert "parquet:PATH" in sentence(lambda: load_source(f"hf:{tmp_path}/table"), DataError)
    hub.Dataset.from_dict({"a": [[1.0]], "b": [[2.0]], "label": [0]}).save_to_disk(tmp_path / "two")
    assert "?input=a" in sentence(lambda: load_source(f"hf:{tmp_path}/two"), SettingError)
    assert "label is 'nose'" in sentence(lambda: load_source(f"hf:{tmp_path}/two", label="nose"), SettingError)
    assert "there is none" in sentence(lambda: load_source(f"hf:{tmp_path}/two?val=train"), SettingError)
    (tmp_path / "empty").mkdir()
    assert "cannot be loaded" in sentence(lambda: load_source(f"hf:{tmp_path}/empty"), DataError)
