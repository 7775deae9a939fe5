"""Backbones: nets that turn an image or a vector into a feature vector; the classifier is added elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from fedframe.models.custom import build_own, with_dim
from fedframe.models.image_layout import channels_last
from fedframe.models.registry import NETS, build_named, default_net
from fedframe.util.locate import locate

__all__ = ["NETS", "build_net", "default_net"]


def build_net(net: str | nn.Module | Callable[..., nn.Module], shape: tuple[int, ...]) -> nn.Module:
    """Build a backbone for samples of this shape: (channels, height, width) or (features,).

    Parameters
    ----------
    net
        A name of `NETS`, an import path such as `my_file.py:MyNet` or `package.module:MyNet`, an `nn.Module`
        (copied, never changed), or a class or function that returns one, called with `shape=` if it has a
        parameter of that name.
    shape
        The shape of one sample, without the batch.

    Returns
    -------
    nn.Module
        Maps (batch, *shape) to (batch, dim), with `dim` as an attribute. New weights are drawn from torch's
        global random generator; convolution weights are stored channels_last, which is faster on CPUs.
    """
    if isinstance(net, str) and not _is_import_path(net):
        return channels_last(build_named(net, shape))
    thing = locate(net) if isinstance(net, str) else net
    label = repr(net if isinstance(net, str) else getattr(net, "__name__", type(net).__name__))
    return with_dim(build_own(thing, shape, label), shape, label)


def _is_import_path(net: str) -> bool:
    place = net.rpartition(":")[0]
    return place not in ("", *NETS) or net.endswith(".py")
