from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedframe
from fedframe.data import load_source, make_federation
from fedframe.errors import DataError, SettingError
from tests.data.conftest import sentence

RNG = np.random.default_rng(0)
SIZES = {"train": 60, "val": 12, "test": 18}


def write(path: Path, classes: int, *shape: int, labels: int = 1, leave_out: tuple[str, ...] = ()) -> Path:
    """A file of MedMNIST's form; the first pixel of an image tells its split and row."""
    arrays = {}
    for i, (split, count) in enumerate(SIZES.items()):
        images = RNG.integers(256, size=(count, *shape)).astype(np.uint8)
        images.reshape(count, -1)[:, 0] = i * 80 + np.arange(count)
        arrays[f"{split}_images"] = images
        arrays[f"{split}_labels"] = (np.arange(count * labels) % classes).reshape(count, labels).astype(np.uint8)
    kept: dict[str, Any] = {name: array for name, array in arrays.items() if name not in leave_out}
    np.savez(path, **kept)
    return path


@pytest.mark.parametrize(("classes", "shape"), [(2, (28, 28)), (9, (28, 28, 3))])
def test_a_file_is_read_without_options_and_its_validation_split_set_aside(
    tmp_path: Path, classes: int, shape: tuple[int, ...]
) -> None:
    path = write(tmp_path / "pathmnist.npz", classes, *shape)
    source = load_source(f"npz:{path}")
    assert source.classes == tuple(map(str, range(classes)))
    assert source.input_shape == (shape[2] if len(shape) == 3 else 1, 28, 28)
    assert source.test is not None
    first = source.train.x.take(torch.arange(60)).flatten(1)[:, 0]
    assert first.tolist() == list(range(60))  # train_images alone
    assert source.test.x.take(torch.arange(18)).flatten(1)[:, 0].tolist() == list(range(160, 178))
    assert source.train.y.tolist() == [i % classes for i in range(60)]
    notes = make_federation(source, partition="iid", clients=3, seed=0).notes
    assert any("12 samples of the validation split are set aside" in note for note in notes)


def test_the_validation_split_is_trained_on_if_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", 3, 28, 28)
    source = load_source(f"npz:{path}?val=train")
    assert len(source.train) == 72
    assert source.train.x.take(torch.tensor([60])).flatten()[0] == 80
    assert source.test is not None
    assert len(source.test) == 18
    assert "added to the training samples" in source.notes[0]


def test_without_a_test_split_the_validation_split_is_the_test_set(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", 3, 28, 28, leave_out=("test_images", "test_labels"))
    source = load_source(f"npz:{path}")
    assert source.test is not None
    assert (len(source.train), len(source.test)) == (60, 12)
    assert "are the test set" in source.notes[0]


def test_volumes_are_said_to_be_images_of_many_channels(tmp_path: Path) -> None:
    source = load_source(f"npz:{write(tmp_path / 'organ.npz', 3, 8, 8, 8)}")
    assert source.input_shape == (8, 8, 8)
    assert "image of 8 channels" in source.notes[1]


def test_samples_with_several_labels_are_multilabel(tmp_path: Path) -> None:
    source = load_source(f"npz:{write(tmp_path / 'chestmnist.npz', 2, 28, 28, labels=14)}")
    assert source.task == "multilabel"
    assert source.train.targets.shape == (60, 14)
    assert any("multilabel" in note for note in source.notes)


def test_what_cannot_be_read_ends_in_a_sentence(tmp_path: Path) -> None:
    several = write(tmp_path / "chestmnist.npz", 2, 28, 28, labels=14)
    lacking = write(tmp_path / "b.npz", 2, 28, 28, leave_out=("val_labels",))
    assert "lacks val_labels" in sentence(lambda: load_source(f"npz:{lacking}"), DataError)
    assert "use aside or train" in sentence(lambda: load_source(f"npz:{several}?val=test"), SettingError)
    plain = tmp_path / "plain.npz"
    np.savez(plain, x_train=np.zeros((4, 2)), y_train=np.arange(4))
    assert "leave it out" in sentence(lambda: load_source(f"npz:{plain}?val=train"), SettingError)


def test_a_run_says_what_was_done_with_the_validation_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = f"npz:{write(tmp_path / 'small.npz', 2, 8, 8)}"
    fedframe.run("fedavg", data=data, clients=2, rounds=1, workers=1, personal=False, out=tmp_path / "run")
    assert "validation split are set aside" in capsys.readouterr().out
