"""MobileNetV2: inverted residual blocks with depthwise convolutions (Sandler et al., 2018), width 1.

Images up to 64 pixels keep their size through the stem and the second stage, as is usual on CIFAR; larger
ones are halved there as in the paper. The dropout before the classifier is left out: it belongs to the
head.
"""

from __future__ import annotations

from torch import Tensor, nn

from fedframe.models.layers import conv_bn, init_convs

# Expansion t, channels c, repeats n and stride s of Table 2.
STAGES = [
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
        for expansion, out, repeats, stride in STAGES:
            first = 1 if out == 24 and not large else stride
            for i in range(repeats):
                layers.append(Inverted(channels, out, first if i == 0 else 1, expansion))
                channels = out
        layers += [conv_bn(channels, self.dim, 1), nn.ReLU6(inplace=True)]
        self.layers = nn.Sequential(*layers)
        init_convs(self)

    def forward(self, x: Tensor) -> Tensor:
        """Give the features, (batch, dim)."""
        return self.layers(x).mean((2, 3))  # type: ignore[no-any-return]


class Inverted(nn.Module):
    """Widen by 1x1, filter each channel by 3x3, narrow by 1x1 without ReLU, add the input if sizes agree."""

    def __init__(self, channels: int, out: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = channels * expansion
        widen = [conv_bn(channels, wide, 1), nn.ReLU6(inplace=True)] if expansion > 1 else []
        depthwise = [conv_bn(wide, wide, 3, stride, groups=wide), nn.ReLU6(inplace=True)]
        self.body = nn.Sequential(*widen, *depthwise, conv_bn(wide, out, 1))
        self.adds = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        """Give the maps of the next block."""
        y: Tensor = self.body(x)
        return y.add_(x) if self.adds else y
