"""The closed form's part of a model: a feature map and the classifier behind it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedframe.core import Model
from fedframe.methods.closed_form.personal import log_scores
from fedframe.methods.closed_form.private import LONGEST, bounded
from fedframe.models.feature_maps import FeatureMap, fixed

MODULE = "analytic"  # of the model's extras


class ClosedFormHead(nn.Module):
    """A feature map and a linear classifier behind it; nothing of it trains."""

    def __init__(self, features: FeatureMap, classes: int) -> None:
        super().__init__()
        self.features = features
        self.mean, self.inverse = fixed(torch.zeros(features.dim)), fixed(torch.ones(features.dim))
        self.weight, self.bias = fixed(torch.zeros(classes, features.dim)), fixed(torch.zeros(classes))
        # Least squares' own, from which personal models start: beside a classifier for rare classes it is another.
        self.plain_weight, self.plain_bias = fixed(torch.zeros(classes, features.dim)), fixed(torch.zeros(classes))
        self.counts = fixed(torch.zeros(classes))  # samples of each class at all clients
        self.leverage = fixed(torch.zeros(()))  # of a sample, in the mean
        # Of a client's own model: the power to which probabilities are raised, and its class frequencies beside all's.
        self.sharpness, self.shift = fixed(torch.ones(())), fixed(torch.zeros(classes))
        self.bounded = fixed(torch.zeros(()))  # 1 where features are cut to a length, as privacy needs it
        self.fitted = fixed(torch.zeros(()))  # 1 when the classifier is there
        self.logits = fixed(torch.zeros(()))  # 1 where scores are logits, not least squares' probabilities

    def standardised(self, inputs: Tensor) -> Tensor:
        """Features as the classifier sees them."""
        found: Tensor = (self.features(inputs) - self.mean) * self.inverse
        return bounded(found) if bool(self.bounded) else found

    def centred(self, inputs: Tensor) -> Tensor:
        """Features minus what the server takes for their mean, as they are summed up."""
        found: Tensor = self.features(inputs).to("cpu", torch.float64)
        return found - self.mean.to("cpu", torch.float64)

    def bound(self, clip: float) -> None:
        """Features as privacy needs them: about where they lie without a look at data, and of bounded length."""
        self.mean.copy_(self.features.usual())
        self.inverse.fill_(LONGEST / clip)
        self.bounded.fill_(1.0)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of the classes."""
        scores = nn.functional.linear(self.standardised(inputs), self.weight, self.bias)
        return self.sharpness * (scores if bool(self.logits) else log_scores(scores)) + self.shift


def closed_form(model: Model) -> ClosedFormHead:
    """The closed form's part of a model."""
    head = model.extras[MODULE]
    assert isinstance(head, ClosedFormHead)
    return head
