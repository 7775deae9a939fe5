"""Nets with shortcuts and BatchNorm: ResNet-18, 20, 34 and 50, ResNet-18 with squeeze-and-excitation, MobileNetV2.

- `ResNet`: He et al., Deep Residual Learning (2016), with the bottleneck's stride on its 3x3 convolution as is usual
  today; ResNet-20 has the parameter-free shortcuts of its CIFAR section. Squeeze-and-excitation: Hu et al.,
  Squeeze-and-Excitation Networks (2018), reduction 16.
- `MobileNetV2`: Sandler et al. (2018), width 1. The dropout before the classifier is left out: it belongs to the head.

Images up to 64 pixels keep their size at first, as is usual on CIFAR: a ResNet then starts with a 3x3 convolution
instead of a 7x7 one with stride 2 and pooling, and MobileNetV2 does not halve the map in its stem and second stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from fedframe.models.convnets import init_convs


def conv_bn(channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A padded convolution, without a bias because the BatchNorm that follows has one."""
    conv = nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out))


class Excitation(nn.Module):
    """Squeeze-and-excitation: scale each channel by a number in (0, 1) computed from the means of all channels."""

    def __init__(self, channels: int, reduction: int = 16) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, channels // reduction)
        self.excite = nn.Linear(channels // reduction, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled feature maps."""
        scale = self.excite(self.squeeze(x.mean((2, 3))).relu_()).sigmoid_()
        return x * scale[:, :, None, None]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class ResNetConfig:
    """What distinguishes one residual net from another."""

    depths: tuple[int, ...]
    stem: int = 64
    bottleneck: bool = False
    excite: bool = False
    free_shortcuts: bool = False


RESNETS = {
    "resnet20": ResNetConfig((3, 3, 3), stem=16, free_shortcuts=True),
    "resnet18": ResNetConfig((2, 2, 2, 2)),
    "resnet34": ResNetConfig((3, 4, 6, 3)),
    "resnet50": ResNetConfig((3, 4, 6, 3), bottleneck=True),
    "senet18": ResNetConfig((2, 2, 2, 2), excite=True),
}


class ResNet(nn.Module):
    """A stem, stages of residual blocks that halve the map and double the channels, then the mean."""

    def __init__(self, shape: tuple[int, int, int], name: str) -> None:
        super().__init__()
        config = RESNETS[name]
        self.large = min(shape[1:]) > 64
        kernel, stride = (7, 2) if self.large else (3, 1)
        self.stem = conv_bn(shape[0], config.stem, kernel, stride)
        blocks, channels = [], config.stem
        for stage, depth in enumerate(config.depths):
            width = config.stem * 2**stage
            for i in range(depth):
                block = Block(channels, width, stride=2 if stage > 0 and i == 0 else 1, config=config)
                blocks.append(block)
                channels = block.out
        self.blocks = nn.Sequential(*blocks)
        self.dim = channels
        init_convs(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features, (batch, dim)."""
        x = self.stem(x)
        if self.large:
            x = F.max_pool2d(x, 3, stride=2, padding=1)  # before the ReLU: same values, a quarter of the work
        return self.blocks(x.relu_()).mean((2, 3))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Two 3x3 convolutions, or 1x1-3x3-1x1 as a bottleneck, added to the shortcut."""

    def __init__(self, channels: int, width: int, stride: int, config: ResNetConfig) -> None:
        super().__init__()
        self.out = width * (4 if config.bottleneck else 1)
        if config.bottleneck:
            layers = [conv_bn(channels, width, 1), nn.ReLU(inplace=True), conv_bn(width, width, 3, stride)]
            layers += [nn.ReLU(inplace=True), conv_bn(width, self.out, 1)]
        else:
            layers = [conv_bn(channels, width, 3, stride), nn.ReLU(inplace=True), conv_bn(width, width, 3)]
        if config.excite:
            layers.append(Excitation(self.out))
        self.body = nn.Sequential(*layers)
        self.shortcut: nn.Module | partial[Tensor] | None = None
        if stride > 1 or channels != self.out:
            free = partial(_free_shortcut, stride=stride, extra=self.out - channels)
            self.shortcut = free if config.free_shortcuts else conv_bn(channels, self.out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the feature maps."""
        y = self.body(x)
        y += x if self.shortcut is None else self.shortcut(x)
        return y.relu_()  # type: ignore[no-any-return]


def _free_shortcut(x: Tensor, stride: int, extra: int) -> Tensor:
    """Every second pixel, with zeros as the new channels (option A of He et al.)."""
    return F.pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, extra // 2, extra - extra // 2))


# Expansion t, channels c, repeats n and stride s of Table 2.
MOBILENET_STAGES = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
]


class MobileNetV2(nn.Module):
    """A stem, seventeen inverted residual blocks, a 1x1 convolution to 1280, then the mean over the map."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.dim = 1280
        large = min(shape[1:]) > 64
        layers: list[nn.Module] = [conv_bn(shape[0], 32, 3, 2 if large else 1), nn.ReLU6(inplace=True)]
        channels = 32
        for expansion, out, repeats, stride in MOBILENET_STAGES:
            first = 1 if out == 24 and not large else stride
            for i in range(repeats):
                layers.append(InvertedResidual(channels, out, first if i == 0 else 1, expansion))
                channels = out
        layers += [conv_bn(channels, self.dim, 1), nn.ReLU6(inplace=True)]
        self.layers = nn.Sequential(*layers)
        init_convs(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features, (batch, dim)."""
        return self.layers(x).mean((2, 3))  # type: ignore[no-any-return]


class InvertedResidual(nn.Module):
    """Widen by 1x1, filter each channel by 3x3, narrow by 1x1 without ReLU, add the input if sizes agree."""

    def __init__(self, channels: int, out: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = channels * expansion
        widen = [conv_bn(channels, wide, 1), nn.ReLU6(inplace=True)] if expansion > 1 else []
        depthwise = [conv_bn(wide, wide, 3, stride, groups=wide), nn.ReLU6(inplace=True)]
        self.body = nn.Sequential(*widen, *depthwise, conv_bn(wide, out, 1))
        self.adds = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        """Return the feature maps."""
        y: Tensor = self.body(x)
        return y.add_(x) if self.adds else y
