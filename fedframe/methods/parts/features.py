"""What happens to a feature on its way to the classifier: normalised, projected, scaled by a learned temperature.

SphereFed (Dong et al., 2022) and FedETF (Li et al., 2023) put features on the unit sphere; FedETF projects them first
and scales them by one learned number beta, so that logits = beta v_c' mu (FedETF, "balanced feature loss").

They act in this order wherever they stand in a method's name: a map after the normalisation would leave the sphere, and
a normalisation after the scale would undo it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedframe.core import ClientContext, Model, Part
from fedframe.data.target import TASKS, Task


@dataclass(frozen=True)
class Projection(Part):
    """A learned linear map of the features to `dim` numbers."""

    name: ClassVar[str] = "projection"
    tasks: ClassVar[tuple[Task, ...] | None] = TASKS
    same_in_rounds: ClassVar[bool] = True
    rank: ClassVar[int] = -2

    dim: Annotated[int, Field(ge=1)] | None = None  # None: 64, or as many as there are classes if they are more
    """Length of the projected feature; empty means 64, or the number of classes if that is more."""

    def build(self, model: Model) -> None:
        """Put the map behind the backbone."""
        dim = self.dim or max(64, model.classes)
        model.extras["projection"] = nn.Linear(model.dim, dim)
        model.dim = dim

    @property
    def samplewise(self) -> bool:
        """Outside of rounds each sample is transformed by itself."""
        return True

    def transform(self, model: Model, features: Tensor, context: ClientContext | None) -> Tensor:
        """Map the features linearly: g(p; h)."""
        projected: Tensor = model.extras["projection"](features)
        return projected


@dataclass(frozen=True)
class Normalise(Part):
    """Features on the unit sphere: z = h / ||h||."""

    name: ClassVar[str] = "normalise"
    tasks: ClassVar[tuple[Task, ...] | None] = TASKS
    same_in_rounds: ClassVar[bool] = True
    rank: ClassVar[int] = -1

    @property
    def samplewise(self) -> bool:
        """Outside of rounds each sample is transformed by itself."""
        return True

    def transform(self, model: Model, features: Tensor, context: ClientContext | None) -> Tensor:
        """Divide by the norm; a feature of zeros stays zero."""
        return F.normalize(features, dim=-1)


class Scale(nn.Module):
    """One learned number."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(start))


@dataclass(frozen=True)
class Temperature(Part):
    """Features times a number beta, learned (and averaged) like a weight, or fixed."""

    name: ClassVar[str] = "temperature"
    tasks: ClassVar[tuple[Task, ...] | None] = TASKS
    same_in_rounds: ClassVar[bool] = True

    beta: Annotated[float, Field(gt=0)] = 10.0
    """The factor at the beginning."""
    learned: bool = True
    """Whether the factor is learned."""

    def build(self, model: Model) -> None:
        """Start from beta. With beta = 1 an ETF cannot reach a softmax above .25 for ten classes; 10 reaches .9999."""
        model.extras["temperature"] = Scale(self.beta).requires_grad_(self.learned)

    @property
    def samplewise(self) -> bool:
        """Outside of rounds each sample is transformed by itself."""
        return True

    def transform(self, model: Model, features: Tensor, context: ClientContext | None) -> Tensor:
        """Multiply by beta."""
        beta = model.extras["temperature"].beta
        assert isinstance(beta, Tensor)
        return features * beta
