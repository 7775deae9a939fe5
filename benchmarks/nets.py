"""A small net with BatchNorm for the rows of the tables that need one: `--model benchmarks/nets.py:NormNet`."""

from __future__ import annotations

from torch import Tensor, nn


class NormNet(nn.Module):
    """Two 3x3 convolutions and one fully connected layer, each with BatchNorm; a 64-d feature.

    It pools before BatchNorm and ReLU, which then touch a quarter of the values.
    """

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = shape
        left = 16 * (height // 4) * (width // 4)
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, 8, 3, padding=1, bias=False), nn.MaxPool2d(2), nn.BatchNorm2d(8), nn.ReLU()),
            *(nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.MaxPool2d(2), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(left, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU()),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Turn images into features."""
        features: Tensor = self.body(x)
        return features
