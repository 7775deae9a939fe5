"""Residual nets: ResNet-20 for CIFAR, ResNet-18, 34 and 50, and ResNet-18 with squeeze-and-excitation.

He et al., Deep Residual Learning (2016), with the bottleneck's stride on its 3x3 convolution as is usual
today; ResNet-20 with the parameter-free shortcuts of its CIFAR section. Hu et al., Squeeze-and-Excitation
Networks (2018), reduction 16. Images up to 64 pixels enter through a 3x3 convolution, larger ones through a
7x7 one with stride 2 and pooling.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from fedframe.models.layers import Excitation, conv_bn, init_convs


@dataclass(frozen=True)
class Plan:
    """What tells one residual net from another."""

    depths: tuple[int, ...]
    stem: int = 64
    bottleneck: bool = False
    excite: bool = False
    free_shortcuts: bool = False


PLANS = {
    "resnet20": Plan((3, 3, 3), stem=16, free_shortcuts=True),
    "resnet18": Plan((2, 2, 2, 2)),
    "resnet34": Plan((3, 4, 6, 3)),
    "resnet50": Plan((3, 4, 6, 3), bottleneck=True),
    "senet18": Plan((2, 2, 2, 2), excite=True),
}


class ResNet(nn.Module):
    """A stem, stages of residual blocks that halve the map and double the channels, then the mean."""

    def __init__(self, shape: tuple[int, int, int], name: str) -> None:
        super().__init__()
        plan = PLANS[name]
        self.large = min(shape[1:]) > 64
        kernel, stride = (7, 2) if self.large else (3, 1)
        self.stem = conv_bn(shape[0], plan.stem, kernel, stride)
        blocks, channels = [], plan.stem
        for stage, depth in enumerate(plan.depths):
            width = plan.stem * 2**stage
            for i in range(depth):
                block = Block(channels, width, stride=2 if stage > 0 and i == 0 else 1, plan=plan)
                blocks.append(block)
                channels = block.out
        self.blocks = nn.Sequential(*blocks)
        self.dim = channels
        init_convs(self)

    def forward(self, x: Tensor) -> Tensor:
        """Give the features, (batch, dim)."""
        x = self.stem(x)
        if self.large:
            x = F.max_pool2d(x, 3, stride=2, padding=1)  # before the ReLU: same values, a quarter of the work
        return self.blocks(x.relu_()).mean((2, 3))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Two 3x3 convolutions, or 1x1-3x3-1x1 as a bottleneck, added to the shortcut."""

    def __init__(self, channels: int, width: int, stride: int, plan: Plan) -> None:
        super().__init__()
        self.out = width * (4 if plan.bottleneck else 1)
        if plan.bottleneck:
            layers = [conv_bn(channels, width, 1), nn.ReLU(inplace=True), conv_bn(width, width, 3, stride)]
            layers += [nn.ReLU(inplace=True), conv_bn(width, self.out, 1)]
        else:
            layers = [conv_bn(channels, width, 3, stride), nn.ReLU(inplace=True), conv_bn(width, width, 3)]
        if plan.excite:
            layers.append(Excitation(self.out))
        self.body = nn.Sequential(*layers)
        self.shortcut: nn.Module | partial[Tensor] | None = None
        if stride > 1 or channels != self.out:
            free = partial(_free_shortcut, stride=stride, extra=self.out - channels)
            self.shortcut = free if plan.free_shortcuts else conv_bn(channels, self.out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Give the maps of the next block."""
        y = self.body(x)
        y += x if self.shortcut is None else self.shortcut(x)
        return y.relu_()  # type: ignore[no-any-return]


def _free_shortcut(x: Tensor, stride: int, extra: int) -> Tensor:
    """Every second pixel, with zeros as the new channels (option A of He et al.)."""
    return F.pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, extra // 2, extra - extra // 2))
