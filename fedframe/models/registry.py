"""The nets by name, and `build_net`, which builds one by its name, import path or class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from fedframe.errors import SettingError, nearest
from fedframe.models.convnets import MLP, ConvNet, PlainCNN, WideConvNet, parse_widths
from fedframe.models.custom import build_custom, channels_last, check_features
from fedframe.models.feature_maps import Raw
from fedframe.models.residual import MobileNetV2, ResNet
from fedframe.models.zoo import build_zoo, is_zoo
from fedframe.util.locate import locate

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class ImageModel:
    """A named image net: its description, the smallest image that it takes, and its constructor."""

    about: str
    smallest: int  # pixels on the shorter side
    build: Callable[[Shape], nn.Module]


IMAGE_NETS: dict[str, ImageModel] = {
    "convnet": ImageModel("LeNet-5 with a 64-d feature, for 28 to 40 pixels", 12, ConvNet),
    "cnn": ImageModel("FedAvg's CNN: two 5x5 convolutions and 512 units, for 28 to 40 pixels", 16, WideConvNet),
    "cnn7": ImageModel(
        "seven layers with the classifier: six 3x3 convolutions, 256-d feature", 8, lambda s: PlainCNN(s, "cnn7")
    ),
    "vgg11": ImageModel("VGG-11 without BatchNorm, 512-d feature", 16, lambda s: PlainCNN(s, "vgg11")),
    "vgg13": ImageModel("VGG-13 without BatchNorm, 512-d feature", 16, lambda s: PlainCNN(s, "vgg13")),
    "vgg13bn": ImageModel("VGG-13 with BatchNorm, 512-d feature", 16, lambda s: PlainCNN(s, "vgg13", batch_norm=True)),
    "resnet20": ImageModel("ResNet-20 for CIFAR, widths 16-32-64, 64-d feature", 8, lambda s: ResNet(s, "resnet20")),
    "resnet18": ImageModel("ResNet-18, 512-d feature", 8, lambda s: ResNet(s, "resnet18")),
    "resnet34": ImageModel("ResNet-34, 512-d feature", 8, lambda s: ResNet(s, "resnet34")),
    "resnet50": ImageModel("ResNet-50, 2048-d feature", 8, lambda s: ResNet(s, "resnet50")),
    "senet18": ImageModel("ResNet-18 with squeeze-and-excitation, 512-d feature", 8, lambda s: ResNet(s, "senet18")),
    "mobilenetv2": ImageModel("MobileNetV2, 1280-d feature", 8, MobileNetV2),
}

NETS: dict[str, str] = {
    "mlp": "two hidden layers of 200 for vectors and tiny images; other widths as mlp:256x128",
    **{name: entry.about for name, entry in IMAGE_NETS.items()},
    "raw": "no net: the values themselves, for methods that bring features of their own",
}


ZOO_NETS: dict[str, str] = {
    "timm:NAME": "a net of timm (extra timm); with :pretrained behind the name, its published weights",
    "torchvision:NAME": "a net of torchvision, in the same way (extra torchvision)",
    "transformers:NAME_OR_FOLDER": "an image net of transformers, of the hub or a folder, in the same way (its extra)",
}

MANY_SAMPLES = 10_000  # from which on a net with millions of weights learns more than a small one


def default_net(shape: tuple[int, ...], samples: int = 0, device: str = "cpu") -> str:
    """The net that is used for samples of this shape if the user names none.

    A large one only where there are many training samples and a GPU. The choice depends on nothing that is measured:
    the same data give the same net everywhere.
    """
    if len(shape) != 3 or min(shape[1:]) < 28:
        return "mlp"
    if min(shape[1:]) > 40 and samples >= MANY_SAMPLES and device.startswith("cuda"):
        return "resnet18"
    return "convnet" if min(shape[1:]) <= 96 else "resnet20"  # whose weights do not grow with the image


def build_named(name: str, shape: tuple[int, ...]) -> nn.Module:
    """Build one of `NETS`; a SettingError says why it cannot be built and what would work."""
    if len(shape) not in (1, 3) or min(shape) < 1:
        raise SettingError(
            f"The net {name!r} takes samples of shape (channels, height, width) or (features,), "
            f"all at least 1, not {shape}."
        )
    base, colon, options = name.partition(":")
    if base == "mlp":
        return MLP(shape, parse_widths(name, options) if colon else (200, 200))
    if name == "raw":
        return Raw(shape)
    if base not in IMAGE_NETS:
        raise SettingError(
            f"There is no net {name!r}: {nearest(name.lower(), NETS)} A net of your own is named as 'my_file.py:MyNet'."
        )
    if colon:
        raise SettingError(f"The net {base!r} has no options, so write model={base!r} instead of {name!r}.")
    entry, works = IMAGE_NETS[base], default_net(shape)
    if len(shape) == 1:
        raise SettingError(f"The net {name!r} takes images, not vectors of {shape[0]} numbers: use model={works!r}.")
    channels, height, width = shape
    if min(height, width) < entry.smallest:
        raise SettingError(
            f"The net {name!r} takes images of at least {entry.smallest}x{entry.smallest} pixels, "
            f"not {height}x{width}: use model={works!r}."
        )
    return entry.build((channels, height, width))


def build_net(net: str | nn.Module | Callable[..., nn.Module], shape: tuple[int, ...]) -> nn.Module:
    """Build a backbone for samples of this shape: (channels, height, width) or (features,).

    Parameters
    ----------
    net
        A name of `NETS`, `timm:NAME`, `torchvision:NAME` or `transformers:NAME_OR_FOLDER`,
        an import path such as `my_file.py:MyNet` or `package.module:MyNet`, an `nn.Module`
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
    if isinstance(net, str) and is_zoo(net):
        return check_features(build_zoo(net, shape), shape, repr(net))
    if isinstance(net, str) and not _is_import_path(net):
        try:
            return channels_last(build_named(net, shape))
        except (MemoryError, OverflowError, RuntimeError, TypeError) as error:
            if not net.startswith("mlp:"):  # only its widths can be more than torch can count or hold
                raise
            raise SettingError(
                f"model = {net[:60]!r} is too large for this machine; use a smaller one, such as mlp:64."
            ) from error
    found = locate(net) if isinstance(net, str) else net
    label = repr(net if isinstance(net, str) else getattr(net, "__name__", type(net).__name__))
    return check_features(build_custom(found, shape, label), shape, label)


def _is_import_path(net: str) -> bool:
    place = net.rpartition(":")[0]
    return place not in ("", *NETS) or net.endswith(".py")
