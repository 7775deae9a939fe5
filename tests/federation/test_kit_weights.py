"""Initial weights that come with a kit: the agreed file, from the kit to the node's folder."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("flwr")

from fedframe.errors import DataError, SettingError
from fedframe.federation.create import form_from_description, new_federation
from fedframe.federation.folder import FederationFolder
from fedframe.federation.join import Membership, make_node
from fedframe.federation.kit import Kit
from fedframe.federation.kit_weights import MAX_BYTES
from fedframe.federation.members import add_member
from fedframe.jobs.gather import gather
from fedframe.models import build_net
from tests.data.conftest import sentence
from tests.federation.clinic import write_arrays


def federation(folder: Path, with_weights: bool = True, **settings: Any) -> tuple[FederationFolder, Path]:
    weights = folder / "net.safetensors"
    save_file(
        {name: torch.full_like(value, 0.02) for name, value in build_net("mlp:8", (6,)).state_dict().items()}, weights
    )
    given = {"method": "fedavg", "model": "mlp:8", "weights": str(weights), "rounds": 1, **settings}
    form = form_from_description("a,b,c", "6", "0", "1")
    asked = gather({name: value for name, value in given.items() if value is not None}, None)
    return new_federation(
        folder / "clinic", ["north", "south"], ["127.0.0.1"], 9000, form, asked, with_weights
    ), weights


def first_weight(member: Membership) -> torch.Tensor:
    return next(iter(member.maker.template.backbone.parameters()))


@pytest.mark.parametrize("name", ["north", "late"])
def test_a_node_needs_no_other_copy_of_the_file(name: str, tmp_path: Path) -> None:
    made, weights = federation(tmp_path)
    if name == "late":
        add_member(made, name, lambda text: None)
    weights.unlink()  # a node has no such path
    kit = Kit.read(made.path / "kits" / f"{name}-kit.zip")
    data, home = write_arrays(tmp_path / "own.npz", 1), tmp_path / "node"
    member = Membership(kit, data, home)
    assert not home.exists()  # nothing is written before joining
    member.check()
    make_node(member, lambda text: None)
    assert bool((first_weight(member) == 0.02).all())
    assert member.maker.settings.weights == str(home / "weights.safetensors")
    member.lock.release()  # type: ignore[union-attr]
    again = Membership(Kit.read(home), data, home)
    assert bool((first_weight(again) == 0.02).all())


def test_weights_of_more_than_a_megabyte_come_out_as_they_went_in(tmp_path: Path) -> None:
    """Only the first megabyte did: with `--with-weights` no real net's kit could be used."""
    content = bytes(range(256)) * 5000
    archive_path = tmp_path / "large.zip"
    with zipfile.ZipFile(archive_path, "w") as archive:
        archive.writestr("weights", content)
    with zipfile.ZipFile(archive_path) as archive:
        assert Kit._read_member(archive, "weights", MAX_BYTES) == content
        with pytest.raises(DataError, match="larger than 1,048,576 bytes"):
            Kit._read_member(archive, "weights")


def test_another_content_is_refused(tmp_path: Path) -> None:
    made, _ = federation(tmp_path)
    path = made.path / "kits/north-kit.zip"
    kit = Kit.read(path)
    assert kit.weights is not None
    replace(kit, weights=kit.weights[:-1] + b"x").write(tmp_path / "changed.zip")
    assert "is not the file that was agreed on" in sentence(lambda: Kit.read(tmp_path / "changed.zip"), DataError)
    (tmp_path / "home").mkdir()
    kit.install(tmp_path / "home")
    (tmp_path / "home/weights.safetensors").write_bytes(b"damaged")
    data = write_arrays(tmp_path / "own.npz", 1)
    said = sentence(lambda: Membership(Kit.read(tmp_path / "home"), data, tmp_path / "home"), SettingError)
    assert "not the file of before" in said


def test_kits_have_the_file_only_if_asked(tmp_path: Path) -> None:
    made, weights = federation(tmp_path, with_weights=False)
    with zipfile.ZipFile(made.path / "kits/north-kit.zip") as archive:
        assert not any(name.startswith("weights") for name in archive.namelist())
    kit = Kit.read(made.path / "kits/north-kit.zip")
    data = write_arrays(tmp_path / "own.npz", 1)
    assert Membership(kit, data, tmp_path / "node").settings.weights == str(weights)
    said = sentence(lambda: federation(tmp_path / "clinic", weights=None), SettingError)
    assert "there are no weights to hand over" in said
