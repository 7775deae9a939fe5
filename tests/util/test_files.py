from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedframe.errors import DataError, RunError
from fedframe.util.files import read_json, read_tensors, write_bytes, write_tensors, write_text


def test_full_disk_is_one_sentence_and_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file.txt"
    write_text(target, "old")

    def no_space(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(Path, "open", no_space)
        with pytest.raises(RunError, match="No space left on device"):
            write_bytes(target, b"new")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


def test_tensors_and_notes_come_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "t.safetensors"
    write_tensors(path, {"a": torch.randn(3, 2).T}, {"round": 4})
    tensors, notes = read_tensors(path)
    assert tensors["a"].shape == (2, 3)
    assert notes == {"round": 4}


def test_cut_off_file_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    write_tensors(path, {"a": torch.randn(100)}, {})
    path.write_bytes(path.read_bytes()[:150])
    with pytest.raises(DataError, match=r"t\.safetensors is damaged"):
        read_tensors(path)
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(DataError, match=r"x\.json"):
        read_json(tmp_path / "x.json")
