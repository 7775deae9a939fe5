"""FedETF's personal stage: the feature extractor first, then classifier and projection in turn.

Li et al., No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning, ICCV 2023, "Personalized
adaptation by local finetuning". Plain cross-entropy throughout; beta learns in every step.
    (1) local feature adaptation: u, beta; projection and ETF fixed
    (2) for some iterations: V and beta, then p and beta

Differs from the paper in: it does not say how long or how fast. The authors' code alternates 20 times, 3 epochs each, V
with lr .1 and the projection with lr .05; these are the defaults, but for fewer iterations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from fedframe.core.part import Part, Slot
from fedframe.parts.cross_entropy import CrossEntropy

if TYPE_CHECKING:
    from fedframe.core.work import Work


@dataclass(frozen=True)
class AlternatingAdaptation(Part):
    """Feature extractor, then classifier and projection in turn, with plain cross-entropy."""

    name: ClassVar[str] = "fedetf_stage"
    claims: ClassVar[frozenset[Slot]] = frozenset({"client_stage"})
    paper: ClassVar[str] = "Li et al., No Fear of Classifier Biases, ICCV 2023"

    feature_epochs: Annotated[int, Field(ge=0)] = 5
    iterations: Annotated[int, Field(ge=0)] = 5
    epochs: Annotated[int, Field(ge=1)] = 1
    head_lr: Annotated[float, Field(gt=0)] = 0.1
    projection_lr: Annotated[float, Field(gt=0)] = 0.05

    def personalise(self, work: Work) -> None:
        """The two parts of the adaptation."""
        self._fit(work, self.feature_epochs, "backbone.", work.lr)
        for _ in range(self.iterations):
            self._fit(work, self.epochs, "head.", self.head_lr)
            self._fit(work, self.epochs, "extras.projection.", self.projection_lr)

    def _fit(self, work: Work, epochs: int, prefix: str, lr: float) -> None:
        """Train what starts with the prefix, and beta."""
        work.lr = lr
        work.fit(epochs, only=lambda name: name.startswith((prefix, "extras.temperature.")), loss=CrossEntropy())
