from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from fedframe.data import load_source, mnist
from fedframe.errors import DataError
from tests.data.conftest import idx_bytes, sentence, write_gz

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(256, size=(30, 28, 28), dtype=np.uint8)
LABELS = (np.arange(30) % 10).astype(np.uint8)


def contents() -> dict[str, bytes]:
    arrays = (IMAGES, LABELS, IMAGES[:10], LABELS[:10])
    return {name: idx_bytes(array) for name, array in zip(mnist.FILES, arrays, strict=True)}


@pytest.mark.parametrize(
    ("name", "folder"),
    [("mnist", "mnist"), ("mnist", "MNIST/raw"), ("mnist", ""), ("fashion-mnist", "FashionMNIST/raw")],
)
@pytest.mark.parametrize("packed", [True, False])
def test_files_are_found_in_the_customary_places(tmp_path: Path, name: str, folder: str, packed: bool) -> None:
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    for file, data in contents().items():
        if packed:
            write_gz(tmp_path / folder / f"{file}.gz", data)
        else:
            (tmp_path / folder / file).write_bytes(data)
    source = load_source(name, data_dir=tmp_path)
    assert (len(source.train), len(source.test or ())) == (30, 10)
    assert source.input_shape == (1, 28, 28)
    assert torch.equal(source.train.x.take(torch.tensor([3]))[0, ..., 0], torch.from_numpy(IMAGES[3]))
    assert source.train.y.tolist() == LABELS.tolist()
    assert len(source.classes) == 10


def test_the_data_folder_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file, data in contents().items():
        write_gz(tmp_path / "mnist" / f"{file}.gz", data)
    monkeypatch.setenv("FEDFRAME_DATA", str(tmp_path))
    assert len(load_source("mnist").train) == 30


def test_debians_package_is_found_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file, data in contents().items():
        write_gz(tmp_path / "debian" / f"{file}.gz", data)
    monkeypatch.setattr(mnist, "DEBIAN", tmp_path / "debian")
    assert len(load_source("fashion-mnist", data_dir=tmp_path / "nothing").train) == 30


@pytest.mark.parametrize("as_zip", [True, False])
def test_emnist_letters_are_turned_upright_and_counted_from_a(tmp_path: Path, as_zip: bool) -> None:
    labels = (np.arange(52) % 26 + 1).astype(np.uint8)
    images = RNG.integers(256, size=(52, 28, 28), dtype=np.uint8)
    packed = {
        f"{name}.gz": gzip.compress(idx_bytes(labels if "labels" in name else images)) for name in mnist.EMNIST_FILES
    }
    (tmp_path / "emnist").mkdir()
    if as_zip:
        with zipfile.ZipFile(tmp_path / "emnist" / "gzip.zip", "w") as pack:
            pack.writestr("gzip/emnist-mnist-train-images-idx3-ubyte.gz", b"not needed")
            for name, data in packed.items():
                pack.writestr(f"gzip/{name}", data)
    else:
        for name, data in packed.items():
            (tmp_path / "emnist" / name).write_bytes(data)
    source = load_source("emnist-letters", data_dir=tmp_path)
    assert source.classes[0] == "a"
    assert source.train.y.tolist() == (labels - 1).tolist()
    assert torch.equal(source.train.x.take(torch.tensor([5]))[0, ..., 0], torch.from_numpy(images[5].T.copy()))
    assert not (tmp_path / "emnist" / "emnist-mnist-train-images-idx3-ubyte.gz").exists()


def test_damaged_files_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    for file, data in contents().items():
        write_gz(folder / f"{file}.gz", data)
    path = folder / "train-images-idx3-ubyte.gz"
    good, plain = path.read_bytes(), contents()["train-images-idx3-ubyte"]
    flipped = good[:500] + bytes((good[500] ^ 255,)) + good[501:]
    for bad in (good[:-100], good[:5], flipped, gzip.compress(plain[:-7]), gzip.compress(plain + b"x"),
                gzip.compress(b"\0\0\x0d\3" + plain[4:]), b"hello", b""):  # fmt: skip
        path.write_bytes(bad)
        assert str(path) in sentence(lambda: load_source("mnist", data_dir=tmp_path), DataError)


def test_labels_out_of_range_and_too_few_labels_are_errors(tmp_path: Path) -> None:
    folder = tmp_path / "mnist"
    for file, data in contents().items():
        write_gz(folder / f"{file}.gz", data)
    write_gz(folder / "train-labels-idx1-ubyte.gz", idx_bytes(LABELS + 1))
    assert "outside 0 to 9" in sentence(lambda: load_source("mnist", data_dir=tmp_path), DataError)
    write_gz(folder / "train-labels-idx1-ubyte.gz", idx_bytes(LABELS[:7]))
    assert "y has 7" in sentence(lambda: load_source("mnist", data_dir=tmp_path), DataError)


def test_fashion_files_are_not_taken_for_mnist(tmp_path: Path) -> None:
    for file, data in contents().items():
        write_gz(tmp_path / f"{file}.gz", data)
    labels = LABELS.copy()
    labels[: len(mnist.FASHION_START)] = list(mnist.FASHION_START)
    write_gz(tmp_path / "train-labels-idx1-ubyte.gz", idx_bytes(labels))
    assert "another set" in sentence(lambda: load_source("mnist", data_dir=tmp_path), DataError)
