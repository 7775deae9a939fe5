"""Files of a user's own that tests share: a part with a helper beside it, a net, and data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers import blobs

HELPER = "def strength():\n    return {strength}\n"
PART = '''
from dataclasses import dataclass
from typing import ClassVar

from helper import strength

from fedframe import Part, Recipe


@dataclass(frozen=True)
class Decay(Part):
    """A penalty on the weights."""

    name: ClassVar[str] = "decay"
    amount: float = 0.01

    def penalty(self, context):
        return strength() * self.amount * sum(weights.square().sum() for weights in context.model.parameters())


GENTLE = Recipe("gentle", "Hardly any decay.", parts=(Decay(0.001),), defaults={"lr": 0.05})
'''
NET = """
import torch


class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(5, 8), torch.nn.ReLU())
"""
SMALL: dict[str, Any] = {"rounds": 2, "batch": 8, "epochs": 1, "workers": 1, "partition": "user", "progress": False}


def write_own(folder: Path, strength: float = 1.0, seed: int = 0) -> Path:
    """Write all of them; `strength` and `seed` change a helper and the data."""
    (folder / "helper.py").write_text(HELPER.format(strength=strength))
    (folder / "mine.py").write_text(PART)
    (folder / "net.py").write_text(NET)
    np.savez(folder / "mine.npz", **blobs(seed=seed))
    return folder
