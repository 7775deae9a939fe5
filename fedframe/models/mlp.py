"""A multi-layer perceptron: the sample as one vector, then linear layers with ReLU.

With the default widths and ten classes on 28x28 it is the "2NN" of McMahan et al., Communication-Efficient
Learning of Deep Networks from Decentralized Data (2017): 199,210 parameters.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

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
        """Give the features, (batch, dim)."""
        x = x.flatten(1)
        for layer in self.layers:
            x = layer(x).relu_()
        return x


def parse_widths(name: str, options: str) -> tuple[int, ...]:
    """Read the widths out of a name such as `mlp:256x128`."""
    words = options.split("x")
    if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
        raise SettingError(f"The net {name!r} has widths that cannot be read: write for example model='mlp:256x128'.")
    return tuple(int(word) for word in words)
