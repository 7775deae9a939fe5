from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from fedframe.data import load_source
from fedframe.data.cifar import CIFAR10, CIFAR100
from fedframe.errors import DataError
from tests.data.conftest import sentence

PIXELS = np.random.default_rng(0).integers(256, size=(6, 3072), dtype=np.uint8)


def ten() -> dict[str, bytes]:
    labels = np.arange(6, dtype=np.uint8)[:, None]
    records = np.concatenate([labels, PIXELS], 1).tobytes()
    files = dict.fromkeys((*CIFAR10.train, CIFAR10.test), records)
    return files | {"batches.meta.txt": b"\n".join(b"name%d" % i for i in range(10)) + b"\n\n"}


def write(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


@pytest.mark.parametrize("folder", ["cifar-10-batches-bin", "cifar10/cifar-10-batches-bin", "cifar10", ""])
def test_cifar10_is_read_channel_by_channel(tmp_path: Path, folder: str) -> None:
    write(tmp_path / folder, ten())
    source = load_source("cifar10", data_dir=tmp_path)
    assert (len(source.train), len(source.test or ())) == (30, 6)
    assert source.input_shape == (3, 32, 32)
    assert source.classes[9] == "name9"
    assert source.train.y.tolist() == [*range(6)] * 5
    image = source.train.x.take(torch.tensor([8]))[0]
    assert torch.equal(image.permute(2, 0, 1), torch.from_numpy(PIXELS[2].reshape(3, 32, 32)))


def test_cifar100_takes_the_fine_label_and_numbers_for_missing_names(tmp_path: Path) -> None:
    labels = np.stack([np.full(6, 3), np.arange(94, 100)], 1).astype(np.uint8)
    records = np.concatenate([labels, PIXELS], 1).tobytes()
    write(tmp_path / "cifar-100-binary", {"train.bin": records, "test.bin": records})
    source = load_source("cifar100", data_dir=tmp_path)
    assert source.train.y.tolist() == [*range(94, 100)]
    assert source.classes[42] == "42"


def test_only_what_is_needed_leaves_the_archive(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as tar:
        files = {f"cifar-10-batches-bin/{name}": data for name, data in ten().items()}
        for name, data in ({"../evil.txt": b"x", "cifar-10-batches-bin/readme.html": b"x"} | files).items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("cifar-10-batches-bin/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert len(load_source("cifar10", data_dir=tmp_path).train) == 30
    assert sorted(path.name for path in (tmp_path / "cifar-10-batches-bin").iterdir()) == sorted(ten())
    assert not (tmp_path.parent / "evil.txt").exists()


def test_a_link_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "cifar-100-binary.tar.gz", "w:gz") as tar:
        for name in ("train.bin", "test.bin", "fine_label_names.txt"):
            link = tarfile.TarInfo(f"cifar-100-binary/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(link)
    assert "lacks" in sentence(lambda: load_source("cifar100", data_dir=tmp_path), DataError)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    good = ten()["data_batch_3.bin"]
    for bad, part in ((good[:-1], "3073"), (b"", "cut short"), (b"\x0b" + good[1:], "label 11")):
        write(folder, ten() | {"data_batch_3.bin": bad})
        text = sentence(lambda: load_source("cifar10", data_dir=tmp_path), DataError)
        assert "data_batch_3.bin" in text
        assert part in text
    write(folder, ten() | {"batches.meta.txt": b"a b c"})
    assert "3 class names" in sentence(lambda: load_source("cifar10", data_dir=tmp_path), DataError)


def test_an_archive_cut_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / CIFAR100.archive
    path.write_bytes(b"\x1f\x8b\x08\0\0\0\0\0nonsense")
    assert str(path) in sentence(lambda: load_source("cifar100", data_dir=tmp_path), DataError)
