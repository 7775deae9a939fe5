"""`timm:NAME` and `torchvision:NAME`: nets of these packages as backbones, by the names of their registries.

The classifier is taken off, so that what is left gives features. Weights are random (and then `weights` may bring a
file), or with `:pretrained` those that the package publishes, from its cache or, where there is a network, from there.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from fedframe.errors import SettingError, nearest
from fedframe.models.transformers_nets import build_transformers
from fedframe.util.allowed_code import ZOOS
from fedframe.util.locate import reason

PRETRAINED = ":pretrained"


def is_zoo(name: str) -> bool:
    """Whether a net's name is one of another package's registry."""
    return name.partition(":")[0] in ZOOS and ":" in name


def without_weights(name: str) -> str:
    """The same net with random weights, for who has its weights already."""
    return name.removesuffix(PRETRAINED) if is_zoo(name) else name


def build_zoo(name: str, shape: tuple[int, ...]) -> nn.Module:
    """Build a net for images of this shape (channels, height, width); it gives features (batch, dim)."""
    kind, _, rest = name.partition(":")
    if kind == "transformers":
        return build_transformers(name, shape)
    pretrained = name.endswith(PRETRAINED)
    wanted = rest.removesuffix(PRETRAINED)
    package = require(kind, name)
    if len(shape) != 3:
        raise SettingError(f"The net {name!r} takes images, not vectors of {shape[0]} numbers: use model='mlp'.")
    known: Collection[str] = package.list_models()
    if wanted.partition(".")[0] not in known:  # behind the dot: which published weights
        raise SettingError(f"{kind} has no net {wanted!r}; {nearest(wanted, known)}")
    try:
        if kind == "timm":
            return build_timm(package, wanted, pretrained, shape)
        return build_tv(package, wanted, pretrained)
    except SettingError:
        raise
    except Exception as error:  # these packages raise whatever they like, also for want of a network
        missing = "; its published weights are neither in the cache nor to be had" if pretrained else ""
        raise SettingError(f"The net {name!r} could not be built ({reason(error)}){missing}.") from error


def require(kind: str, name: str) -> ModuleType:
    """The module with the registry, or how to install it."""
    try:
        return import_module("timm" if kind == "timm" else "torchvision.models")
    except ImportError:
        raise SettingError(f"model = {name!r} needs {kind}: pip install 'fedframe[{kind}]'.") from None
    except RuntimeError as error:  # a torchvision that was made for another torch
        raise SettingError(
            f"model = {name!r}: torchvision does not fit the torch that is installed ({reason(error)}); install the "
            "one that was made for it, from the same place."
        ) from error


def build_timm(package: Any, name: str, pretrained: bool, shape: tuple[int, ...]) -> nn.Module:
    """timm takes the classifier off itself, adapts to channels, and to sizes where a net is made for one."""
    asked: dict[str, Any] = {"pretrained": pretrained, "num_classes": 0, "in_chans": shape[0]}
    cfg: Any = package.get_pretrained_cfg(name, allow_unregistered=True)
    size = getattr(cfg, "input_size", None)
    if getattr(cfg, "fixed_input_size", False) and size is not None and tuple(size[1:]) != shape[1:]:
        asked["img_size"] = shape[1:]
    net: nn.Module = package.create_model(name, **asked)
    return net


class Features(nn.Module):
    """A net of torchvision: grey images become three equal channels, as its first layers want them."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) to (batch, dim)."""
        found: Tensor = self.net(x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x)
        return found.flatten(1)


def build_tv(package: Any, name: str, pretrained: bool) -> nn.Module:
    """The net without its last linear layer."""
    net: nn.Module = package.get_model(name, weights="DEFAULT" if pretrained else None)
    layers = [path for path, module in net.named_modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise SettingError(f"torchvision's {name!r} has no linear classifier to take off; use another net.")
    parent, _, child = layers[-1].rpartition(".")
    setattr(net.get_submodule(parent), child, nn.Identity())
    return Features(net)
