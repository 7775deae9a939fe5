from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import fedframe
from fedframe.core.model import Model, assign_roles
from fedframe.errors import SettingError
from fedframe.models.freeze import frozen_modules
from fedframe.util.files import read_tensors


class Normed(nn.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(shape[0] * shape[1] * shape[2], 8), nn.BatchNorm1d(8))
        self.second = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.second(self.first(x.flatten(1)).relu())
        return found


def test_the_first_children_are_counted_below_a_single_child() -> None:
    net = Normed((1, 8, 8))
    assert frozen_modules(net, "none") == ()
    assert frozen_modules(net, "backbone") == ("",)
    assert frozen_modules(net, "1") == ("first",)
    assert frozen_modules(nn.Sequential(net), "1") == ("0.first",)


@pytest.mark.parametrize("freeze", ["2", "7", "head", "0", "-1", ""])
def test_what_cannot_be_frozen_ends_in_a_sentence(freeze: str) -> None:
    with pytest.raises(SettingError, match="use"):
        frozen_modules(Normed((1, 8, 8)), freeze)


def test_frozen_tensors_do_not_travel_and_stay_in_evaluation_mode() -> None:
    model = Model(Normed((1, 8, 8)), 6, 3)
    model.freeze(("first",))
    model.train()
    assert not model.get_submodule("backbone.first.1").training
    assert model.get_submodule("backbone.second.1").training
    layout = assign_roles(model, (), "average").layout
    names = {entry.name for entry in layout.entries}
    assert not any(name.startswith("backbone.first") for name in names)
    assert "backbone.second.1.running_mean" in names
    everything = assign_roles(Model(Normed((1, 8, 8)), 6, 3), (), "average").layout
    assert len(everything.entries) > len(layout.entries)


@pytest.mark.slow
@pytest.mark.parametrize(("freeze", "kept"), [("1", "backbone.first."), ("backbone", "backbone.")])
def test_a_run_leaves_the_frozen_weights_and_statistics_alone(tmp_path: Path, freeze: str, kept: str) -> None:
    def tensors(folder: str, rounds: int) -> dict[str, torch.Tensor]:
        out = tmp_path / folder
        fedframe.run(
            "fedavg", model=Normed, freeze=freeze, rounds=rounds, clients=2, workers=1, data_share=0.1, out=out
        )  # fmt: skip
        return read_tensors(out / "model.safetensors")[0]

    before, after = tensors("before", 0), tensors("after", 1)
    for name, value in after.items():
        if name.startswith("model/") and value.is_floating_point():
            assert torch.equal(value, before[name]) == name.startswith(f"model/{kept}"), name
