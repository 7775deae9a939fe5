from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedframe.errors import DamageError
from fedframe.util.checksums import NAME, opened_line, sealed_line
from fedframe.util.files import read_json, read_tensors, tensors_to_bytes, write_bytes, write_json, write_tensors

TENSORS = {"a": torch.arange(5.0), "b": torch.zeros(()), "c": torch.empty(0)}


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << (bit % 8)
    return bytes(changed)


@pytest.mark.slow
def test_every_flipped_bit_of_a_tensor_file_is_found_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, TENSORS, {"round": 3, "name": "é"})
    content, (tensors, notes) = path.read_bytes(), read_tensors(path)
    assert notes == {"round": 3, "name": "é"}
    passed = 0
    for bit in range(8 * len(content)):
        path.write_bytes(flipped(content, bit))
        try:
            found, found_notes = read_tensors(path)
        except DamageError:
            continue
        passed += 1  # the name of the checksum itself: all that it covers is as it was
        assert found_notes["round"] == 3
        assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    assert passed <= 8 * len(NAME)


@pytest.mark.slow
def test_every_flipped_bit_of_a_json_file_is_found_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"scores": [0.5, 1.25], "name": "north"})
    content = path.read_bytes()
    assert read_json(path) == {"scores": [0.5, 1.25], "name": "north"}
    for bit in range(8 * len(content)):
        path.write_bytes(flipped(content, bit))
        try:
            found = read_json(path)
        except DamageError:
            continue
        assert (found["scores"], found["name"]) == ([0.5, 1.25], "north")


def test_files_of_earlier_versions_have_no_checksum_and_are_read(tmp_path: Path) -> None:
    write_bytes(tmp_path / "old.safetensors", tensors_to_bytes(TENSORS, {"round": 1}))
    (tmp_path / "old.json").write_text('{"a": 1}')
    assert read_tensors(tmp_path / "old.safetensors")[1] == {"round": 1}
    assert read_json(tmp_path / "old.json") == {"a": 1}


def test_equal_tensors_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_tensors(tmp_path / name, TENSORS, {"x": 1})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.slow
@given(st.dictionaries(st.text(), st.integers() | st.text() | st.floats(allow_nan=False), min_size=1))
def test_a_line_comes_back_as_it_was_and_damage_is_seen(line: dict[str, object]) -> None:
    plain = json.dumps(line).encode()
    sealed = sealed_line(plain)
    assert opened_line(sealed) == plain
    assert json.loads(sealed).items() >= {key: value for key, value in line.items() if key != "crc"}.items()
    assert opened_line(sealed[:-3] + b"g" + sealed[-2:]) is None


@pytest.mark.parametrize("read", [read_json, read_tensors])
def test_whatever_stands_in_a_files_place_is_one_sentence(tmp_path: Path, read: object) -> None:
    assert callable(read)
    path = tmp_path / "file"
    with pytest.raises(DamageError, match="There is no"):
        read(path)
    path.mkdir()
    with pytest.raises(DamageError, match="no file but a folder"):
        read(path)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(DamageError, match="no file but a pipe"):
        read(path)
    path.unlink()
    for content in (b"", b"\xff\xfe\xc3", b"[" * 100_000, b'{"a":' * 100_000, b"\x93NUMPY\x01\x00", b"3", b"\0" * 64):
        path.write_bytes(content)
        with pytest.raises(DamageError, match="damaged"):
            read(path)


def test_text_with_a_lone_surrogate_comes_back_as_it_was(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"name": "caf\udce9"})
    assert read_json(tmp_path / "x.json") == {"name": "caf\udce9"}
