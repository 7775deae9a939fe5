"""Two small nets with two 5x5 convolutions each, for images of about 28 to 40 pixels.

`ConvNet` is LeNet-5 (LeCun et al., 1998) with ReLU, max-pooling and a 64-d feature, as in FedRANE;
`WideConvNet` is the CNN of McMahan et al. (2017) with unpadded convolutions: 582,026 parameters with ten
classes on 1x28x28.

Both pool before the ReLU: the result is the same, as ReLU keeps the order, and it touches a quarter of the
values.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


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
        """Give the features, (batch, dim)."""
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
        """Give the features, (batch, dim)."""
        x = F.max_pool2d(self.conv1(x), 2).relu_()
        x = F.max_pool2d(self.conv2(x), 2).relu_()
        return self.fc(x.flatten(1)).relu_()  # type: ignore[no-any-return]


def _pooled_twice(side: int) -> int:
    """Side of the map after two rounds of an unpadded 5x5 convolution and a 2x2 pooling."""
    return ((side - 4) // 2 - 4) // 2
