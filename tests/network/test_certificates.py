"""Secrets on disk: whole or not there, and never anybody else's to read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

import pytest

pytest.importorskip("cryptography")

from fedframe.network.certificates import write_secret
from fedframe.network.masker import Masker


class FullDisk:
    """A file to which nothing more can be written."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file

    def __enter__(self) -> FullDisk:
        return self

    def __exit__(self, *what: object) -> None:
        self.file.close()

    def write(self, content: bytes) -> int:
        self.file.write(content[:3])
        raise OSError(28, "No space left on device")


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    usual = os.fdopen

    def fdopen(*given: Any) -> Any:
        return FullDisk(usual(*given))

    monkeypatch.setattr(os, "fdopen", fdopen)
    return monkeypatch


def test_a_full_disk_leaves_no_half_key_and_the_node_is_well_afterwards(
    tmp_path: Path, full: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="No space"):
        Masker(tmp_path, print)
    assert list(tmp_path.iterdir()) == []
    full.undo()
    assert Masker(tmp_path, print).public == Masker(tmp_path, print).public


def test_a_full_disk_leaves_the_secret_that_was_there(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    write_secret(tmp_path / "node.key", b"first")
    request.getfixturevalue("full")
    with pytest.raises(OSError, match="No space"):
        write_secret(tmp_path / "node.key", b"second")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("node.key", b"first")]


def test_a_secret_is_its_owners_only_also_in_the_place_of_another_file(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "node.key"
    path.parent.mkdir()
    path.write_bytes(b"open to all")
    path.chmod(0o644)
    write_secret(path, b"secret")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"secret", 0o600)
