"""Nets of timm and torchvision: with the packages where they work, and with stand-ins of theirs everywhere."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import fedframe
from fedframe.errors import SettingError
from fedframe.models import build_net
from fedframe.models.adapters import adapt
from fedframe.models.weights import load_weights
from fedframe.models.zoo import without_weights
from fedframe.util.allowed_code import code_place
from tests.data.conftest import sentence
from tests.helpers import images


def works(package: str) -> str:
    """Why a package cannot be used here; nothing if it can."""
    try:
        __import__(package)
    except (ImportError, RuntimeError) as error:  # torchvision raises this if it was made for another torch
        return f"{error} (it comes with the extra {package!r}, and must have been made for the torch that is there)"
    return ""


@pytest.mark.parametrize(("package", "name"), [("timm", "timm:resnet18"), ("torchvision", "torchvision:resnet18")])
def test_real_packages(package: str, name: str) -> None:
    if reason := works(package):
        pytest.skip(f"{package} cannot be used here: {reason}")
    net = build_net(name, (1, 32, 32))
    assert net(torch.zeros(2, 1, 32, 32)).shape == (2, 512)


@pytest.mark.parametrize(("package", "name"), [("timm", "timm:resnet10t"), ("torchvision", "torchvision:resnet18")])
def test_real_weights_from_a_file_and_adapters(package: str, name: str, tmp_path: Path) -> None:
    """A file of the package's own whole net, with its names, and its classifier of other classes."""
    if reason := works(package):
        pytest.skip(f"{package} cannot be used here: {reason}")
    module: Any = importlib.import_module("timm" if package == "timm" else "torchvision.models")
    make = module.create_model if package == "timm" else module.get_model
    whole = make(name.partition(":")[2], num_classes=7)
    torch.save(whole.state_dict(), tmp_path / "net.pth")
    net = build_net(name, (3, 32, 32))
    assert "fc." in load_weights(net, tmp_path / "net.pth")[0]
    assert torch.equal(next(net.parameters()), next(whole.parameters()))
    pytest.importorskip("peft")
    assert all(".lora_" in learns for learns in adapt(net, 2))
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 512)


class Small(nn.Module):
    """A net as these packages make them."""

    def __init__(self, channels: int = 3, classes: int = 1000) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 6, 3)
        self.fc = nn.Linear(6, classes) if classes else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.fc(self.conv(x).relu().mean((2, 3)))
        return found


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Stand-ins with the functions that are used, which note what they are asked for."""
    asked: list[dict[str, Any]] = []
    timm, torchvision, models = ModuleType("timm"), ModuleType("torchvision"), ModuleType("torchvision.models")

    def create_model(name: str, **given: Any) -> nn.Module:
        asked.append({"name": name, **given})
        if given["pretrained"]:
            raise OSError("no network")
        return Small(given["in_chans"], given["num_classes"])

    def get_model(name: str, weights: str | None) -> nn.Module:
        asked.append({"name": name, "weights": weights})
        return Small()

    def config(name: str, allow_unregistered: bool) -> Any:
        return SimpleNamespace(input_size=(3, 224, 224), fixed_input_size=name.startswith("vit"))

    timm.__dict__.update(
        create_model=create_model, get_pretrained_cfg=config, list_models=lambda: ["resnet18", "vit_tiny"]
    )
    models.__dict__.update(get_model=get_model, list_models=lambda: ["resnet18"])
    for module in (timm, torchvision, models):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return asked


def test_the_classifier_is_taken_off_and_shapes_fit(packages: list[dict[str, Any]]) -> None:
    assert build_net("timm:resnet18", (4, 16, 16)).dim == 6
    assert packages[-1] == {"name": "resnet18", "pretrained": False, "num_classes": 0, "in_chans": 4}
    build_net("timm:vit_tiny.augreg", (3, 64, 48))
    assert packages[-1]["img_size"] == (64, 48)
    net = build_net("torchvision:resnet18", (1, 16, 16))
    assert net.dim == 6
    grey = torch.rand(2, 1, 16, 16)
    assert torch.equal(net(grey), net(grey.expand(-1, 3, -1, -1)))
    build_net("torchvision:resnet18:pretrained", (3, 16, 16))
    assert packages[-1]["weights"] == "DEFAULT"


def test_a_run_and_its_predictions(packages: list[dict[str, Any]], tmp_path: Path) -> None:
    result = fedframe.run(
        "fedavg", data=images(), model="timm:resnet18", rounds=1, clients=2, partition="iid", workers=1,
        out=tmp_path / "run", progress=False, freeze="backbone",
    )  # fmt: skip
    assert result.model.predict(images()["x_test"][:3])
    assert "model: timm:resnet18" in (tmp_path / "run/config.yaml").read_text()


@pytest.mark.parametrize(
    ("name", "shape", "part"),
    [
        ("timm:resnet19", (3, 16, 16), "timm has no net 'resnet19'; did you mean"),
        ("timm:hf-hub:org/net", (3, 16, 16), "timm has no net"),  # nothing but the registry's names
        ("timm:resnet18", (7,), "takes images"),
        ("timm:resnet18:pretrained", (3, 16, 16), "neither in the cache nor to be had"),
    ],
)
def test_what_cannot_be_built(name: str, shape: tuple[int, ...], part: str, packages: list[dict[str, Any]]) -> None:
    assert part in sentence(lambda: build_net(name, shape), SettingError)


def test_a_file_has_the_names_of_the_package(packages: list[dict[str, Any]], tmp_path: Path) -> None:
    """Torchvision's net stands in a module of ours, which its own files know nothing of."""
    whole = Small()
    torch.save(whole.state_dict(), tmp_path / "net.pth")
    net = build_net("torchvision:resnet18", (3, 16, 16))
    assert "fc.weight" in load_weights(net, tmp_path / "net.pth")[0]
    assert torch.equal(next(net.parameters()), whole.conv.weight)
    torch.save({f"module.{name}": value for name, value in whole.state_dict().items()}, tmp_path / "parallel.pth")
    assert load_weights(build_net("torchvision:resnet18", (3, 16, 16)), tmp_path / "parallel.pth")


def test_without_the_package_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    assert "pip install 'fedframe[timm]'" in sentence(lambda: build_net("timm:resnet18", (3, 16, 16)), SettingError)


def test_names_of_registries_name_no_code_of_ones_own() -> None:
    assert code_place("timm:resnet18") is None
    assert code_place("timm:resnet18:pretrained") is None
    assert code_place("package.module:MyNet") == "package.module"
    assert without_weights("timm:resnet18:pretrained") == "timm:resnet18"
    assert without_weights("my_file.py:pretrained") == "my_file.py:pretrained"
