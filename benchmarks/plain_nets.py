"""The benchmark's nets as one would write them by hand, with nothing of Fedframe in them.

`tuned` pools before the ReLU, which gives the same values for less time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.jobs import CLASSES, Job


def pooled(x: Tensor, tuned: bool) -> Tensor:
    return F.relu(F.max_pool2d(x, 2)) if tuned else F.max_pool2d(F.relu(x), 2)


class CNN(nn.Module):
    """The FedAvg CNN, 582,026 parameters."""

    def __init__(self, tuned: bool) -> None:
        super().__init__()
        self.tuned = tuned
        self.first, self.second = nn.Conv2d(1, 32, 5), nn.Conv2d(32, 64, 5)
        self.third, self.head = nn.Linear(1024, 512), nn.Linear(512, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = pooled(self.second(pooled(self.first(x), self.tuned)), self.tuned)
        logits: Tensor = self.head(F.relu(self.third(x.flatten(1))))
        return logits


class MLP(nn.Module):
    """Two hidden layers of 200."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(dim, 200), nn.Linear(200, 200), nn.Linear(200, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(F.relu(self.second(F.relu(self.first(x)))))
        return logits


class VGG11(nn.Module):
    """VGG-11 without BatchNorm, one linear layer behind the convolutions."""

    def __init__(self, tuned: bool) -> None:
        super().__init__()
        self.tuned = tuned
        widths = [64, 128, 256, 256, 512, 512, 512, 512]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=1) for a, b in zip([3, *widths], widths, strict=False)
        )
        self.head = nn.Linear(512, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for number, convolution in enumerate(self.convolutions):
            x = convolution(x)
            x = pooled(x, self.tuned) if number in (0, 1, 3, 5, 7) else F.relu(x)
        logits: Tensor = self.head(x.flatten(1))
        return logits


class Block(nn.Module):
    """Two convolutions and a shortcut; where the size changes, every second pixel and channels of zeros."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.extra, self.stride = width - channels, 1 if width == channels else 2
        self.first = nn.Conv2d(channels, width, 3, self.stride, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[1](self.second(F.relu(self.norms[0](self.first(x)))))
        if self.extra:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2))
        return F.relu(x + y)


class ResNet20(nn.Module):
    """The ResNet-20 of the CIFAR experiments."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        widths = [16, 16, 16, 32, 32, 32, 64, 64, 64]
        self.blocks = nn.Sequential(*(Block(a, b) for a, b in zip([16, *widths], widths, strict=False)))
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.norm(self.stem(x))))
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


def plain_net(job: Job, tuned: bool) -> nn.Module:
    """The job's net; a tuned one lies channels-last in memory."""
    nets: dict[str, Callable[[], nn.Module]] = {
        "cnn": lambda: CNN(tuned),
        "mlp": lambda: MLP(job.shape[0]),
        "vgg11": lambda: VGG11(tuned),
        "resnet20": ResNet20,
    }
    net = nets[job.model]()
    return net.to(memory_format=torch.channels_last) if tuned else net  # type: ignore[call-overload]
