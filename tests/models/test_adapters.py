"""LoRA: what trains, what travels, and that a run with adapters can do all that others can."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedframe
from fedframe.analysis.export import export
from fedframe.core.model import count_parameters
from fedframe.errors import SettingError
from fedframe.jobs.build import JobMaker
from fedframe.jobs.gather import gather
from fedframe.models.adapters import adapt, adapted_layers
from fedframe.runs.predictor import Predictor
from tests.data.conftest import sentence
from tests.helpers import blobs


class Attention(nn.Module):
    """A net with a layer that is called as usual, one of torch's own attention, and two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3)
        self.apart = nn.Conv2d(8, 8, 3, groups=8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.last = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.apart(self.conv(x)).flatten(2).mT
        found: torch.Tensor = self.last(self.attention(tokens, tokens, tokens)[0].mean(1))
        return found


def test_which_layers_get_adapters() -> None:
    net = Attention()
    assert adapted_layers(net, "auto") == ["last"]  # attention reads its layers' weights and would ignore adapters
    assert adapted_layers(net, "conv,last") == ["conv", "last"]
    assert adapted_layers(nn.Sequential(nn.Conv2d(1, 2, 3)), "auto") == ["0"]  # convolutions where nothing is linear
    said = sentence(lambda: adapted_layers(net, "query"), SettingError)
    assert "ends in 'query'; use auto, or ends of conv, last" in said
    assert "no convolution for adapters" in sentence(
        lambda: adapted_layers(nn.Sequential(nn.ReLU()), "auto"), SettingError
    )


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"lora": 2, "freeze": "backbone"}, "leave freeze out"),
        ({"lora_layers": "query"}, "add lora = 8"),
        ({"lora_alpha": 4.0}, "add lora = 8"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], part: str) -> None:
    assert part in sentence(lambda: gather({"method": "fedavg", **settings}, None), SettingError)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    assert "pip install 'fedframe[lora]'" in sentence(lambda: adapt(Attention(), 4), SettingError)


@pytest.fixture
def peft() -> Any:
    return pytest.importorskip("peft", reason="needs the extra 'lora': pip install 'fedframe[lora]'")


def test_an_adapted_layer_is_the_papers(peft: Any) -> None:
    """W x + (alpha / r) B A x, and W x alone at the start."""
    net, x = Attention(), torch.randn(3, 1, 6, 6)
    before = net(x)
    names = adapt(net, rank=2, alpha=6.0, layers="last")
    assert torch.allclose(net(x), before, atol=1e-6)
    a, b = (net.get_parameter(name) for name in names)
    assert (tuple(a.shape), tuple(b.shape)) == ((2, 8), (5, 2))
    with torch.no_grad():
        b.normal_()
    layer: Any = net.last
    inputs = torch.randn(4, 8, dtype=torch.float64)
    weight, bias = (tensor.double() for tensor in (layer.base_layer.weight, layer.base_layer.bias))
    expected = inputs @ (weight + 3 * b.double() @ a.double()).T + bias
    assert torch.allclose(layer(inputs.float()).double(), expected, atol=1e-5)


def run(folder: Path, **settings: Any) -> fedframe.Result:
    usual = {"model": "mlp:24x16", "partition": "user", "rounds": 3, "lr": 0.1, "workers": 1, "progress": False}
    return fedframe.run("fedavg+fine_tune", data=blobs(), out=folder, **{**usual, **settings})


def test_only_adapters_and_the_classifier_learn_and_travel(peft: Any, tmp_path: Path) -> None:
    settings = gather({"model": "mlp:24x16", "lora": 2, "partition": "user", "data": "python"}, None)
    job = JobMaker(settings, blobs(), None).make(tmp_path)
    names = {entry.name for entry in job.roles.layout.entries}
    assert all(".lora_" in name or name.startswith("head.") for name in names)
    assert count_parameters(job.template) == 2 * (5 + 24) + 2 * (24 + 16) + 3 * 16 + 3
    base = {name: tensor.clone() for name, tensor in job.template.state_dict().items() if "base_layer" in name}
    result = run(tmp_path / "lora", lora=2, rounds=12, lr=0.3)
    whole = run(tmp_path / "whole", rounds=12)
    assert (result.scores["generic"]["final"] or 0) > 0.7
    sent = [each.summary["bytes_by_part"]["backbone"]["up"] for each in (result, whole)]
    assert sent[0] < sent[1] / 1.5
    model = Predictor.load(result.folder).model
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in base.items())
    assert any(bool(tensor.any()) for name, tensor in model.state_dict().items() if ".lora_B" in name)


def test_workers_resuming_predicting_and_exporting(peft: Any, tmp_path: Path) -> None:
    first = run(tmp_path / "one", lora=2, lora_alpha=3.0)
    second = run(tmp_path / "two", lora=2, lora_alpha=3.0, workers=2, vectorise="auto")
    assert (first.folder / "model.safetensors").read_bytes() == (second.folder / "model.safetensors").read_bytes()
    inputs = np.asarray(blobs()["x_test"])
    found = Predictor.load(first.folder).probabilities(inputs)
    assert torch.equal(found, first.model.probabilities(inputs))
    assert not torch.equal(found, Predictor.load(first.folder, client=0).probabilities(inputs))
    assert export(first.folder, "torch", data=blobs()).difference < 1e-5
