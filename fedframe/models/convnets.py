"""Nets without shortcuts: a multi-layer perceptron, two small CNNs, VGG-11, VGG-13 (also with BatchNorm) and a CNN of
seven layers.

- `MLP`: with the default widths and ten classes on 28x28 it is the "2NN" of McMahan et al., Communication-Efficient
  Learning of Deep Networks from Decentralized Data (2017): 199,210 parameters.
- `ConvNet`: LeNet-5 (LeCun et al., 1998) with ReLU, max-pooling and a 64-d feature, as in FedRANE.
- `WideConvNet`: the CNN of McMahan et al. (2017) with unpadded convolutions: 582,026 parameters with ten classes on
  1x28x28.
- `PlainCNN`: VGG is Simonyan and Zisserman, Very Deep Convolutional Networks (2015), convolutions only; the feature is
  what the last max-pooling leaves, 512 numbers at 32x32, averaged over the map for larger images. The seven-layer net
  follows SphereFed, which gives only the number of layers and calls the last one the classifier: six convolutions here.
  With BatchNorm it stands between a convolution and its ReLU, and convolutions have no bias, as in the ResNets here.

The CNNs pool before the ReLU: the result is the same, as ReLU keeps the order, and it touches a quarter of the values.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from fedframe.errors import SettingError


class MLP(nn.Module):
    """Flatten, then one linear layer with ReLU per width; the last width is the feature."""

    def __init__(self, shape: Sequence[int], widths: Sequence[int]) -> None:
        super().__init__()
        self.dim = widths[-1]
        sizes = [math.prod(shape), *widths]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))

    def forward(self, x: Tensor) -> Tensor:
        """Return the features, (batch, dim)."""
        x = x.flatten(1)
        for layer in self.layers:
            x = layer(x).relu_()
        return x


def parse_widths(name: str, options: str) -> tuple[int, ...]:
    """Read the widths out of a name such as `mlp:256x128`."""
    parts = options.split("x")
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise SettingError(f"The net {name!r} has widths that cannot be read: write for example model='mlp:256x128'.")
    return tuple(int(part) for part in parts)


class ConvNet(nn.Module):
    """5x5 convolutions of 6 and 16 channels, then 120 and 64 units."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.dim = 64
        channels, height, width = shape
        # LeNet-5 was made for 32x32 and saw 28x28 digits with a border of 2: both end in 5x5 maps.
        border = 2 if min(height, width) < 32 else 0
        self.conv1 = nn.Conv2d(channels, 6, 5, padding=border)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * _pooled_twice(height + 2 * border) * _pooled_twice(width + 2 * border), 120)
        self.fc2 = nn.Linear(120, self.dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features, (batch, dim)."""
        x = F.max_pool2d(self.conv1(x), 2).relu_()
        x = F.max_pool2d(self.conv2(x), 2).relu_()
        x = self.fc1(x.flatten(1)).relu_()
        return self.fc2(x).relu_()  # type: ignore[no-any-return]


class WideConvNet(nn.Module):
    """5x5 convolutions of 32 and 64 channels, then 512 units."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.dim = 512
        channels, height, width = shape
        self.conv1 = nn.Conv2d(channels, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        self.fc = nn.Linear(64 * _pooled_twice(height) * _pooled_twice(width), self.dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features, (batch, dim)."""
        x = F.max_pool2d(self.conv1(x), 2).relu_()
        x = F.max_pool2d(self.conv2(x), 2).relu_()
        return self.fc(x.flatten(1)).relu_()  # type: ignore[no-any-return]


def _pooled_twice(side: int) -> int:
    """Side of the map after two rounds of an unpadded 5x5 convolution and a 2x2 pooling."""
    return ((side - 4) // 2 - 4) // 2


def init_convs(net: nn.Module) -> None:
    """Initialise every convolution as He et al. do: Kaiming normal, scaled for ReLU by the fan-out."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


# Channels of the convolutions between one pooling and the next.
STACKS: dict[str, tuple[tuple[int, ...], ...]] = {
    "cnn7": ((64, 64), (128, 128), (256, 256)),
    "vgg11": ((64,), (128,), (256, 256), (512, 512), (512, 512)),
    "vgg13": ((64, 64), (128, 128), (256, 256), (512, 512), (512, 512)),
}


class PlainCNN(nn.Module):
    """3x3 convolutions with ReLU, 2x2 max-pooling after each group of them, then the mean over the map."""

    def __init__(self, shape: tuple[int, int, int], name: str, batch_norm: bool = False) -> None:
        super().__init__()
        groups = STACKS[name]
        widths = [width for group in groups for width in group]
        steps = itertools.pairwise([shape[0], *widths])
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, bias=not batch_norm) for a, b in steps)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths) if batch_norm else None
        self.pools = [i == len(group) - 1 for group in groups for i in range(len(group))]
        self.dim = widths[-1]
        # torch's default initial weights shrink the signal at every layer, and there is no BatchNorm to restore it.
        init_convs(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features, (batch, dim)."""
        for i, (conv, pool) in enumerate(zip(self.convs, self.pools, strict=True)):
            x = conv(x) if self.norms is None else self.norms[i](conv(x))
            if pool:  # rounded up, so that five poolings fit 28x28
                x = F.max_pool2d(x, 2, ceil_mode=True)
            x = x.relu_()
        return x.mean((2, 3))
