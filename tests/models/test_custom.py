"""Nets that users bring, good and bad."""

from __future__ import annotations

import copy
import multiprocessing
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedframe.errors import SettingError
from fedframe.models import build_net

SHAPE = (3, 8, 8)

GOOD = """
from dataclasses import dataclass

import torch
from torch import nn

import helper_of_my_net

@dataclass
class Widths:
    feature: int = helper_of_my_net.WIDTH

class MyNet(nn.Module):
    def __init__(self, shape, scale=1):
        super().__init__()
        self.conv = nn.Conv2d(shape[0], 4, 3)
        self.fc = nn.Linear(4 * (shape[1] - 2) * (shape[2] - 2), Widths().feature * scale)

    def forward(self, x):
        return self.fc(self.conv(x).flatten(1))

def no_arguments():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(7))

ready = nn.Sequential(nn.Flatten(), nn.Linear(192, 9))
number = 3
"""


class Viewing(nn.Module):
    """Flattens with view, as many nets do; that only works with the default layout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.conv(x)
        return maps.view(len(maps), -1)


class Gives(nn.Module):
    """Gives what it was told to."""

    def __init__(self, output: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.output = output

    def forward(self, x: Tensor) -> object:
        return self.output(x)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "helper_of_my_net.py").write_text("WIDTH = 5\n")
    path = tmp_path / "my net.py"
    path.write_text(GOOD)
    return path


def sentence(net: object, shape: tuple[int, ...] = SHAPE) -> str:
    with pytest.raises(SettingError) as caught:
        build_net(net, shape)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("name", "dim"), [("MyNet", 5), ("no_arguments", 7), ("ready", 9)])
def test_net_from_a_file(file: Path, name: str, dim: int) -> None:
    path = list(sys.path)
    net = build_net(f"{file}:{name}", SHAPE)
    assert net.dim == dim
    assert net(torch.zeros(4, *SHAPE)).shape == (4, dim)
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in net.parameters() if p.dim() == 4)
    assert sys.path == path


def test_file_is_loaded_once_and_again_when_it_changed(file: Path) -> None:
    one, two = build_net(f"{file}:MyNet", SHAPE), build_net(f"{file}:MyNet", SHAPE)
    assert type(one) is type(two)
    file.write_text(GOOD.replace("Widths().feature", "11"))
    os.utime(file, ns=(1, 1))
    assert build_net(f"{file}:MyNet", SHAPE).dim == 11


@pytest.mark.slow
def test_file_works_in_worker_processes(file: Path) -> None:
    # spawn: the worker starts with nothing imported
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        net = pool.apply(build_net, (f"{file}:ready", (192,)))
    assert net.dim == 9


def test_net_from_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_package_of_nets").mkdir()
    (tmp_path / "my_package_of_nets" / "small.py").write_text(
        GOOD.replace("import helper_of_my_net", "").replace("helper_of_my_net.WIDTH", "6")
    )
    monkeypatch.chdir(tmp_path)
    assert build_net("my_package_of_nets.small:MyNet", SHAPE).dim == 6


def test_module_object_is_copied_and_left_alone() -> None:
    mine = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4).eval(), nn.Flatten())
    net = build_net(mine, SHAPE)
    assert isinstance(net, nn.Sequential)
    assert net.dim == 4 * 36
    assert not hasattr(mine, "dim")
    assert net.state_dict().keys() == mine.state_dict().keys()
    theirs, ours = mine.get_parameter("0.weight"), net.get_parameter("0.weight")
    assert torch.equal(theirs, ours)
    assert theirs.is_contiguous()
    assert theirs.data_ptr() != ours.data_ptr()
    assert [module.training for module in net] == [True, False, True]
    assert net.get_buffer("1.num_batches_tracked") == 0


def test_class_function_and_partial_are_called() -> None:
    def by_shape(shape: tuple[int, ...], width: int = 3) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], width))

    assert build_net(by_shape, SHAPE).dim == 3
    assert build_net(partial(by_shape, width=6), SHAPE).dim == 6
    assert build_net(nn.Flatten, SHAPE).dim == 192
    assert build_net(nn.Identity, (4,)).dim == 4


def test_net_that_flattens_by_view_still_works() -> None:
    net = build_net(Viewing, SHAPE)
    assert net.dim == 4 * 36
    assert net.get_parameter("conv.weight").is_contiguous(memory_format=torch.channels_last)
    net = copy.deepcopy(net)
    net.train()(torch.zeros(3, *SHAPE)).sum().backward()


def test_three_dimensional_convolution_and_lazy_layers_work() -> None:
    net = build_net(nn.Sequential(nn.Conv3d(1, 2, 3), nn.Flatten(), nn.LazyLinear(5)), (1, 4, 4, 4))
    assert net.dim == 5


def test_dim_that_means_something_else_is_wrapped() -> None:
    mine = nn.Flatten()
    mine.dim = 3  # type: ignore[assignment]
    net = build_net(mine, SHAPE)
    assert net.dim == 192
    assert net(torch.zeros(2, *SHAPE)).shape == (2, 192)


def test_file_errors_say_why(file: Path) -> None:
    assert "there is no file" in sentence("nowhere.py:MyNet")
    assert "names a file but no class in it: write for example 'my_file.py:MyNet'" in sentence(str(file))
    assert f"{file} has no 'MyNett'; did you mean 'MyNet'?" in sentence(f"{file}:MyNett")
    assert "is of type int: give a name" in sentence(f"{file}:number")
    assert "ModuleNotFoundError: No module named 'nowhere'" in sentence("nowhere.at_all:MyNet")
    file.write_text("def broken(:\n")
    assert "could not be loaded: SyntaxError" in sentence(f"{file}:MyNet")
    file.write_text("raise ValueError\n")
    assert f"could not be loaded: ValueError ({file}, line 1)." in sentence(f"{file}:MyNet")


def test_build_errors_say_why() -> None:
    assert "missing 2 required positional arguments" in sentence(nn.Linear)
    assert "else without arguments" in sentence(nn.Linear)
    assert "'dict' gave a value of type dict: it must give an nn.Module" in sentence(dict)
    assert "is of type int" in sentence(3)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (lambda x: (x, x), "gave a value of type tuple"),
        (lambda x: x, r"gave shape (2, 3, 8, 8) for a batch of 2"),
        (lambda x: x.flatten(), "gave shape (384,)"),
        (lambda x: x[:1].flatten(1), "gave shape (1, 192)"),
        (lambda x: x.flatten(1).argmax(1, keepdim=True), "gave numbers of type int64"),
    ],
)
def test_wrong_features_are_refused(output: Callable[[Tensor], object], words: str) -> None:
    text = sentence(Gives(output))
    assert words in text
    assert text.endswith("it must give floating-point features of shape (batch, dim).")


def test_net_that_does_not_fit_the_samples_is_refused() -> None:
    text = sentence(nn.Linear(4, 2), (5,))
    assert text.startswith("The net 'Linear' failed on a batch of two blank samples of shape (5,): RuntimeError:")


FAILS = """
from torch import nn

class Built(nn.Module):
    def forward(self, x):
        return self.deeper(x)

    def deeper(self, x):
        raise KeyError("conv1")

class Unbuilt(nn.Module):
    def __init__(self):
        raise KeyError("width")
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Built", "KeyError: 'conv1' (FILE, line 9, in Built.deeper)."),
        ("Unbuilt", "(FILE, line 13, in Unbuilt.__init__);"),
    ],
)
def test_an_error_in_a_net_is_shown_with_file_line_and_function(tmp_path: Path, name: str, said: str) -> None:
    file = tmp_path / "fails.py"
    file.write_text(FAILS)
    assert said.replace("FILE", str(file)) in sentence(f"{file}:{name}")
