"""A node's folder: another node's is never written into, one's own is; what cannot be used is one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from fedframe.errors import RunError, SettingError
from fedframe.federation.kit import Kit
from fedframe.federation.node_folder import check_node_folder, lock_node_folder
from tests.federation.commands import LONG, until
from tests.federation.test_kit import new
from tests.federation.test_processes import child


def joined(path: Path, node: str, place: Path) -> Kit:
    """The kit of a node of a new federation, kept in its folder."""
    kit = Kit.read(new(path).path / "kits" / f"{node}-kit.zip")
    kit.install(place)
    return kit


def contents(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in place.iterdir()}


@pytest.mark.slow
def test_the_key_of_another_federation_is_never_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "north-node"
    joined(tmp_path / "clinic", "north", place)
    (place / "masks.key").write_bytes(b"of clinic")
    before = contents(place)
    other = Kit.read(new(tmp_path / "trial").path / "kits" / "north-kit.zip")
    said = "north-node belongs to the node north of the federation clinic (its key is another than the kit's); "
    for refuse in (other.install, lambda folder: check_node_folder(other, folder)):
        with pytest.raises(SettingError) as error:
            refuse(place)
        assert str(error.value) == said + "use --out north-node-2."
    assert contents(place) == before
    (tmp_path / "north-node-2").mkdir()
    with pytest.raises(SettingError, match="use --out north-node-3"):
        other.install(place)


def test_another_node_of_the_same_federation_has_a_folder_of_its_own(tmp_path: Path) -> None:
    joined(tmp_path / "clinic", "north", tmp_path / "node")
    before = contents(tmp_path / "node")
    with pytest.raises(SettingError, match="belongs to the node north of the federation clinic"):
        Kit.read(tmp_path / "clinic/kits/south-kit.zip").install(tmp_path / "node")
    assert contents(tmp_path / "node") == before


@pytest.mark.slow
def test_a_folder_without_its_key_is_still_its_federations(tmp_path: Path) -> None:
    joined(tmp_path / "clinic", "north", tmp_path / "node")
    (tmp_path / "node" / "node.key").unlink()
    other = Kit.read(new(tmp_path / "trial").path / "kits" / "north-kit.zip")
    with pytest.raises(SettingError, match=r"of the federation clinic \(its files are others"):
        other.install(tmp_path / "node")
    with pytest.raises(SettingError, match="belongs to the federation clinic"):
        other.install(tmp_path / "clinic")  # the organiser's own folder


@pytest.mark.parametrize("key", [None, b"", b"damaged", b"same"])
def test_a_node_joins_again_with_its_kit(tmp_path: Path, key: bytes | None) -> None:
    place = tmp_path / "node"
    kit = joined(tmp_path / "clinic", "north", place)
    whole = contents(place)
    if key is None:
        (place / "node.key").unlink()
    elif key == b"same":
        (place / "node.key").write_bytes(kit.key.replace(b"\n", b"\r\n"))  # the same key, as Windows wraps lines
    else:
        (place / "node.key").write_bytes(key)
    check_node_folder(kit, place)
    kit.install(place)
    assert contents(place) == whole


def test_a_file_or_a_place_beyond_reach_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kit = Kit.read(new(tmp_path / "clinic").path / "kits" / "north-kit.zip")
    (tmp_path / "file").write_text("a letter")
    for out in ("file", "file/node"):
        with pytest.raises(SettingError) as error:
            check_node_folder(kit, tmp_path / out)
        assert str(error.value) == (
            f"out = {out}: cannot be this node's folder (file is a file); choose one that you can write, "
            "such as --out ~/north-node."
        )
    with pytest.raises(SettingError, match="File name too long"):
        check_node_folder(kit, tmp_path / ("a" * 300))
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere, so it is only said here
    with pytest.raises(SettingError, match=r"out = new: .*Permission denied"):
        check_node_folder(kit, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_a_nodes_folder_is_one_processs_for_as_long_as_it_lives(tmp_path: Path) -> None:
    program = (
        "import pathlib, time; from fedframe.federation.node_folder import lock_node_folder\n"
        f"held = lock_node_folder(pathlib.Path({str(tmp_path)!r})); print('held', flush=True); time.sleep(3600)"
    )
    one = child(tmp_path / "log", program)
    until("it holds the folder", lambda: "held" in one.log_tail())
    with pytest.raises(RunError, match=f"Process {one.pid} takes part with .* already"):
        lock_node_folder(tmp_path)
    assert one.alive
    one.process.kill()
    one.process.wait(LONG)
    lock_node_folder(tmp_path).release()
