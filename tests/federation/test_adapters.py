"""LoRA over the network: kits bring a net of transformers or timm as name and file, and only adapters travel."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from fedframe.federation import start
from fedframe.federation.create import form_from_description
from fedframe.federation.join import Membership
from fedframe.federation.kit import Kit
from fedframe.runs.predictor import Predictor
from fedframe.util.files import read_json
from tests.federation.clinic import NAMES, make_clinic
from tests.models.test_transformers_nets import saved
from tests.models.test_zoo import packages, works

__all__ = ["packages"]  # a fixture
FORM = form_from_description("a,b,c", "8x8x1", "0.3", "0.2")


def write_images(path: Path, seed: int, count: int = 48) -> str:
    """Stripes at one of three places, and noise."""
    draw = np.random.default_rng(seed)
    y = np.arange(count) % 3
    x = draw.integers(0, 60, (count, 8, 8), dtype=np.uint8)
    for row in range(count):
        x[row, :, 3 * y[row] : 3 * y[row] + 2] += 150
    np.savez(path, x=x, y=np.array(["a", "b", "c"])[y])
    return f"npz:{path}"


@pytest.mark.parametrize("secure", [False, True])
def test_adapters_alone_travel(secure: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("peft", reason="needs the extra 'lora'")  # here: importing it takes seconds
    transformers = pytest.importorskip("transformers", reason="needs the extra 'transformers'")
    saved(tmp_path / "vit", transformers)
    sent: dict[str, int] = {}
    for name, rank in (("lora", 2), ("whole", 0)):
        if secure and name == "whole":
            continue
        (folder := tmp_path / name).mkdir()
        settings: dict[str, Any] = {
            "model": f"transformers:{tmp_path}/vit:pretrained", "rounds": 4, "epochs": 3, "optimizer": "adam",
            "lr": 0.02, "batch": 8, "secure": secure, "lora": rank,
        }  # fmt: skip
        made, _ = make_clinic(folder, monkeypatch, form=FORM, write=write_images, with_weights=True, **settings)
        agreement = made.agreement().settings
        assert agreement.model.startswith("transformers:vit?")
        assert agreement.weights_digest is not None
        start.start(made, progress=False)
        summary = read_json(made.runs / "1/summary.json")
        sent[name] = summary["bytes_by_part"]["backbone"]["up"] if not secure else 0
        if name == "lora":
            assert summary["scores"]["client"]["final"] > 0.6
            home = folder / "south-node"
            model = Predictor.load(next((home / "runs").iterdir())).model
            kit = Membership(Kit.read(home), f"npz:{folder}/south.npz", folder / "again", None, None)
            for name_, tensor in kit.maker.template.state_dict().items():
                if "base_layer" in name_:
                    assert torch.equal(tensor, model.state_dict()[name_])
    if not secure:
        numbers = sum(tensor.numel() for name, tensor in model.state_dict().items() if ".lora_" in name)
        assert 4 * numbers <= sent["lora"] / (4 * len(NAMES)) < 8 * numbers  # tensors start on lines of 64 bytes
        assert sent["lora"] < sent["whole"] / 2


@pytest.mark.parametrize("real", [False, True], ids=["stand-in", "timm"])
def test_a_net_of_timm_starts_from_the_kits_file(
    real: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("peft", reason="needs the extra 'lora'")
    if real and (reason := works("timm")):
        pytest.skip(f"timm cannot be used here: {reason}")
    if not real:
        request.getfixturevalue("packages")
    timm: Any = importlib.import_module("timm")
    whole = timm.create_model("resnet18", pretrained=False, in_chans=1, num_classes=7)
    torch.save(whole.state_dict(), tmp_path / "net.pth")
    made, _ = make_clinic(
        tmp_path, monkeypatch, form=FORM, write=write_images, with_weights=True, model="timm:resnet18",
        weights=str(tmp_path / "net.pth"), lora=2, rounds=2, lr=0.1,
    )  # fmt: skip
    assert made.agreement().settings.weights_digest is not None
    start.start(made, progress=False)
    state = Predictor.load(next((tmp_path / "south-node/runs").iterdir())).model.state_dict()
    first = next(iter(whole.parameters()))
    assert any(torch.equal(tensor, first) for name, tensor in state.items() if "base_layer" in name)
    assert any(bool(tensor.any()) for name, tensor in state.items() if ".lora_B." in name)  # they begin as zeros
    sent = read_json(made.runs / "1/summary.json")["bytes_by_part"]["backbone"]["up"] / (2 * len(NAMES))
    if real:
        assert sent < 0.1 * sum(4 * tensor.numel() for tensor in whole.parameters())
    else:  # for a convolution of 1x3x3 to 6 channels: A 2x1x3x3 and B 6x2, on lines of 64 bytes
        assert 4 * (18 + 12) <= sent < 8 * (18 + 12)
