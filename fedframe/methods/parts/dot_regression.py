"""Dot regression: a feature is drawn to its own class vector and pushed away from none.

Yang et al., Inducing Neural Collapse in Imbalanced Learning: Do We Really Need a Learnable Classifier at the End of
Deep Neural Network?, NeurIPS 2022, for class vectors of norm sqrt(E_W) and features brought to norm sqrt(E_H):
    l(h, y) = 1 / (2 sqrt(E_W E_H)) (w_y' h - sqrt(E_W E_H))^2
which is sqrt(E_W E_H) / 2 (cos(w_y, h) - 1)^2. With unit norms it is 1/2 (w_y' h - 1)^2, the form of Yang et al., 2023
(class-incremental learning); FedLoGe's Table 8 ("DR Loss") prints no formula. Cross-entropy also pushes a feature away
from the classes a batch lacks, which is what makes it biased where classes are missing; a frozen ETF needs no push.

Differs from the paper in: the cosine is taken here, so that classifier and feature may have any norm and the loss is
the same with or without `normalise`; sqrt(E_W E_H) is the setting `scale`, 1 by default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Method, Part
from fedframe.errors import SettingError
from fedframe.methods.parts.linear_head import LinearHead


@dataclass(frozen=True)
class DotRegression(Part):
    """Half the squared distance of a feature's cosine with its class vector from 1; needs a frozen classifier."""

    name: ClassVar[str] = "dot_regression"
    paper: ClassVar[str] = "Yang et al., Inducing Neural Collapse in Imbalanced Learning, NeurIPS 2022"

    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0  # sqrt(E_W E_H)
    """Factor on the loss."""

    def check_method(self, method: Method) -> None:
        """Refuse a learned classifier, which would collapse: class vectors and features on one ray have loss zero."""
        if isinstance(method.slot("head"), LinearHead):
            raise SettingError(
                f"{method.name!r} cannot be combined: 'dot_regression' pushes no classes apart, so the learned "
                "classifier 'linear' would fall together; add a frozen one, such as etf."
            )

    def loss(self, logits: Tensor, labels: Tensor, context: ClientContext) -> Tensor:
        """scale/2 (cos(w_y, h) - 1)^2, mean over the batch."""
        weight = context.model.head.weight
        assert isinstance(weight, Tensor)
        cosine = F.cosine_similarity(context.embedding, weight[labels], dim=1)
        return self.scale / 2 * (cosine - 1).square().mean()
