"""Plain stacks of 3x3 convolutions without BatchNorm: VGG-11, VGG-13 and a seven-layer CNN.

VGG: Simonyan and Zisserman, Very Deep Convolutional Networks (2015), convolutions only; the feature is what
the last max-pooling leaves, 512 numbers at 32x32, averaged over the map for larger images. The seven-layer
net follows SphereFed, which gives only the number of layers and calls the last one the classifier: six
convolutions here.
"""

from __future__ import annotations

import itertools

import torch.nn.functional as F
from torch import Tensor, nn

from fedframe.models.layers import init_convs

# Channels of the convolutions between one pooling and the next.
STACKS: dict[str, tuple[tuple[int, ...], ...]] = {
    "cnn7": ((64, 64), (128, 128), (256, 256)),
    "vgg11": ((64,), (128,), (256, 256), (512, 512), (512, 512)),
    "vgg13": ((64, 64), (128, 128), (256, 256), (512, 512), (512, 512)),
}


class Plain(nn.Module):
    """3x3 convolutions with ReLU, 2x2 max-pooling after each group of them, then the mean over the map."""

    def __init__(self, shape: tuple[int, int, int], name: str) -> None:
        super().__init__()
        groups = STACKS[name]
        widths = [width for group in groups for width in group]
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in itertools.pairwise([shape[0], *widths]))
        self.pools = [i == len(group) - 1 for group in groups for i in range(len(group))]
        self.dim = widths[-1]
        # torch's own first weights shrink the signal at every layer, and no BatchNorm brings it back.
        init_convs(self)

    def forward(self, x: Tensor) -> Tensor:
        """Give the features, (batch, dim)."""
        for conv, pool in zip(self.convs, self.pools, strict=True):
            x = conv(x)
            if pool:  # before the ReLU: same values, a quarter of the work; rounded up: five fit 28x28
                x = F.max_pool2d(x, 2, ceil_mode=True)
            x = x.relu_()
        return x.mean((2, 3))
