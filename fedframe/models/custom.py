"""Nets of users: built or copied, then tried on two blank samples, so that mistakes show before the run starts."""

from __future__ import annotations

import copy
import inspect

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedframe.errors import SettingError
from fedframe.util.locate import reason_and_place


def build_custom(thing: object, shape: tuple[int, ...], label: str) -> nn.Module:
    """Copy a module, or call a class or function (with `shape=` if it has such a parameter)."""
    if not callable(thing):
        raise SettingError(
            f"The net {label} is of type {type(thing).__name__}: give a name, an nn.Module, "
            "or a class or function that returns one."
        )
    try:
        if isinstance(thing, nn.Module):
            return copy.deepcopy(thing)
        net = thing(shape=shape) if _takes_shape(thing) else thing()
    except Exception as error:  # the user's code may raise anything
        raise SettingError(
            f"The net {label} could not be built for samples of shape {shape}: {reason_and_place(error)}; "
            "it is called with shape=... if it has a parameter named shape, else without arguments."
        ) from error
    if not isinstance(net, nn.Module):
        raise SettingError(f"The net {label} gave a value of type {type(net).__name__}: it must give an nn.Module.")
    return net


def check_features(net: nn.Module, shape: tuple[int, ...], label: str) -> nn.Module:
    """Try the net on two blank samples, check its output and make sure that `dim` is its width."""
    features = _features(net, shape, label)
    if not isinstance(features, Tensor):
        problem = f"a value of type {type(features).__name__}"
    elif features.dim() != 2 or len(features) != 2 or features.shape[1] == 0:
        problem = f"shape {tuple(features.shape)} for a batch of 2"
    elif not features.is_floating_point():
        problem = f"numbers of type {str(features.dtype).removeprefix('torch.')}"
    else:
        dim = features.shape[1]
        if not hasattr(net, "dim"):
            net.dim = dim  # type: ignore[assignment]
        # A `dim` that means something else to its author stays as it is, inside a wrapper.
        return net if net.dim == dim else _Wrapped(net, dim)
    raise SettingError(f"The net {label} gave {problem}: it must give floating-point features of shape (batch, dim).")


class _Wrapped(nn.Module):
    def __init__(self, net: nn.Module, dim: int) -> None:
        super().__init__()
        self.net = net
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)  # type: ignore[no-any-return]


def _features(net: nn.Module, shape: tuple[int, ...], label: str) -> object:
    try:
        if any(is_lazy(parameter) for parameter in net.parameters()):
            _forward_blank(net, shape)  # materialises lazy layers, which have no layout before
        try:
            return _forward_blank(channels_last(net), shape)
        except RuntimeError:
            # `x.view(len(x), -1)` after a convolution needs torch's default layout.
            return _forward_blank(contiguous_maps(net), shape)
    except Exception as error:  # the user's code may raise anything
        raise SettingError(
            f"The net {label} failed on a batch of two blank samples of shape {shape}: {reason_and_place(error)}."
        ) from error


def _forward_blank(net: nn.Module, shape: tuple[int, ...]) -> object:
    modes = {module: module.training for module in net.modules()}
    first = next(net.parameters(), torch.empty(0))
    try:
        # Evaluation mode, so that BatchNorm's running statistics stay as they are.
        with torch.no_grad():
            return net.eval()(torch.zeros(2, *shape, device=first.device))
    finally:
        for module, training in modes.items():
            module.training = training


def _takes_shape(thing: object) -> bool:
    try:
        return "shape" in inspect.signature(thing).parameters  # type: ignore[arg-type]
    except (TypeError, ValueError):  # some builtins have no signature
        return False


def channels_last(net: nn.Module) -> nn.Module:
    """Store the weights of two-dimensional convolutions channels_last, in place: on CPUs most nets run faster so."""
    for parameter in net.parameters():
        # Not Module.to(memory_format=...): it raises on the five-dimensional weights of a Conv3d, and leaves
        # the weight of a convolution on grey images as it is, (32, 1, 5, 5) being both layouts at once. With
        # channels_last strides torch uses that layout for everything that follows.
        if parameter.dim() == 4:
            data = parameter.data
            parameter.data = torch.empty_like(data, memory_format=torch.channels_last).copy_(data)
    return net


def contiguous_maps(net: nn.Module) -> nn.Module:
    """Make every convolution return maps in torch's default layout, whatever the layout of its weights."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            module.register_forward_hook(_contiguous)
    return net


def _contiguous(_module: nn.Module, _inputs: object, maps: Tensor) -> Tensor:
    return maps.contiguous()
