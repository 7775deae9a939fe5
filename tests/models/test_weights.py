from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import fedframe
from fedframe.errors import DataError, SettingError
from fedframe.models import build_net
from fedframe.models.weights import load_weights
from fedframe.util.files import read_tensors

SHAPE = (1, 8, 8)


@pytest.mark.parametrize("file", ["w.safetensors", "w.pt"])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_every_tensor_comes_from_the_file_and_others_are_named(tmp_path: Path, file: str, prefix: str) -> None:
    saved = {f"{prefix}{name}": value.clone() for name, value in build_net("mlp:4", SHAPE).state_dict().items()}
    saved[f"{prefix}fc.weight"] = torch.zeros(2, 2)
    save_file(saved, tmp_path / file) if file.endswith("s") else torch.save(saved, tmp_path / file)
    net = build_net("mlp:4", SHAPE)
    notes = load_weights(net, tmp_path / file)
    assert all(torch.equal(value, saved[f"{prefix}{name}"]) for name, value in net.state_dict().items())
    assert "fc.weight had no place" in notes[0]


def test_what_does_not_fit_is_said_by_name(tmp_path: Path) -> None:
    net = build_net("mlp:4", SHAPE)
    names = list(net.state_dict())
    other = dict(build_net("mlp:5", SHAPE).state_dict())
    save_file(other, tmp_path / "other.safetensors")
    with pytest.raises(SettingError, match=rf"{names[0]} has shape \(5, 64\), and the net's \(4, 64\)"):
        load_weights(net, tmp_path / "other.safetensors")
    save_file({names[0]: net.state_dict()[names[0]]}, tmp_path / "part.safetensors")
    with pytest.raises(SettingError, match=f"lacks {names[1]}"):
        load_weights(net, tmp_path / "part.safetensors")
    torch.save({"a": Path("x")}, tmp_path / "code.pt")
    with pytest.raises(DataError, match="never opened"):
        load_weights(net, tmp_path / "code.pt")
    with pytest.raises(SettingError, match=r"ends in \.safetensors"):
        load_weights(net, tmp_path / "w.bin")


@pytest.mark.slow
def test_a_run_starts_from_the_file_and_notes_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    saved = {name: torch.full_like(value, 0.01) for name, value in build_net("mlp:4", SHAPE).state_dict().items()}
    save_file(saved, path)

    def run(folder: str, **more: Any) -> None:
        fedframe.run(
            "fedavg", model="mlp:4", weights=str(path), freeze="backbone", rounds=1, clients=2, workers=1,
            data_share=0.1, personal=False, out=tmp_path / folder, **more,
        )  # fmt: skip

    run("run")
    tensors = read_tensors(tmp_path / "run" / "model.safetensors")[0]
    assert all(torch.equal(tensors[f"model/backbone.{name}"], value) for name, value in saved.items())
    assert "weights_digest: " in (tmp_path / "run" / "config.yaml").read_text()
    with pytest.raises(SettingError, match="not the file of before"):
        run("other", weights_digest="0" * 32)
