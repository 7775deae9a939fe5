"""A method of your own beside FedAvg: python examples/own_method.py"""

import sys
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F

import fedframe
from fedframe import Part

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10


@dataclass(frozen=True)
class Smooth(Part):
    """Cross-entropy with smoothed labels."""

    name: ClassVar[str] = "smooth"

    amount: float = 0.1
    """How much of the label is spread over all classes."""

    def loss(self, logits, labels, context):
        return F.cross_entropy(logits, labels, label_smoothing=self.amount)


settings = {"data": "digits", "clients": 10, "rounds": rounds, "progress": False}
for method in ("fedavg", Smooth(0.1), ["fedprox", Smooth(0.2)]):
    result = fedframe.run(method, **settings)
    print(f"{result.scores['generic']['final']:.3f}  {result.folder}")
