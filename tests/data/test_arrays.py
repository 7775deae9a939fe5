from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fedframe.data import load_source
from fedframe.errors import DataError
from tests.data.conftest import sentence

IMAGES = np.arange(30 * 16, dtype=np.uint8).reshape(30, 4, 4)
LABELS = np.arange(30) % 3


def test_arrays_and_users_of_a_file_are_read(tmp_path: Path) -> None:
    np.savez_compressed(
        tmp_path / "own.npz", x_train=IMAGES, y_train=LABELS, x_test=IMAGES[:6], y_test=LABELS[:6],
        user_train=np.arange(30) % 5, user_test=np.arange(6) + 3,
    )  # fmt: skip
    source = load_source(f"npz:{tmp_path}/own.npz")
    assert source.name == "own"
    assert source.input_shape == (1, 4, 4)
    assert torch.equal(source.train.x.take(torch.tensor([4]))[0, ..., 0], torch.from_numpy(IMAGES[4]))
    assert source.user_names == tuple(map(str, range(9)))
    assert source.test is not None
    assert source.test.user is not None
    assert source.test.user.tolist() == [3, 4, 5, 6, 7, 8]


def test_a_file_cut_short_ends_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "cut.npz"
    np.savez_compressed(path, x_train=IMAGES, y_train=LABELS)
    whole = path.read_bytes()
    for keep in (0, 10, len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:keep])
        text = sentence(lambda: load_source(f"npz:{path}"), DataError)
        assert str(path) in text


def test_damaged_content_ends_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    np.savez_compressed(path, x_train=np.random.default_rng(0).random((50, 50)), y_train=np.arange(50))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(bytes(data))
    assert str(path) in sentence(lambda: load_source(f"npz:{path}"), DataError)


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    path = tmp_path / "objects.npz"
    np.savez(path, x_train=np.array([{"a": 1}], object), y_train=np.zeros(1))
    assert "never opened" in sentence(lambda: load_source(f"npz:{path}"), DataError)
    single = tmp_path / "single.npy"
    np.save(single, IMAGES)
    assert "is not an npz file" in sentence(lambda: load_source(f"npz:{single}"), DataError)


def test_a_missing_array_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES)
    text = sentence(lambda: load_source(f"npz:{tmp_path}/a.npz"), DataError)
    assert "lacks x_train" in text
    assert "images" in text
