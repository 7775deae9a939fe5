"""FedETF's personal stage: the feature extractor first, then classifier and projection in turn.

Li et al., No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning, ICCV 2023, "Personalized
adaptation by local finetuning". Plain cross-entropy throughout; beta learns in every step.
    (1) local feature adaptation: u, beta; projection and ETF fixed
    (2) for some iterations: V and beta, then p and beta

Differs from the paper in: it does not say how long or how fast. The authors' code alternates 20 times, 3 epochs each, V
with lr .1 and the projection with lr .05; the defaults have these rates, but 5 times one epoch each. As there, steps of
V have neither momentum nor weight decay, unless `plain_head` is off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from fedframe.core import ClientContext, HeadStage, Method, Model, Part
from fedframe.methods.parts.cross_entropy import CrossEntropy


@dataclass(frozen=True)
class AlternatingAdaptation(Part):
    """Feature extractor, then classifier and projection in turn, with plain cross-entropy."""

    name: ClassVar[str] = "fedetf_stage"
    paper: ClassVar[str] = "Li et al., No Fear of Classifier Biases, ICCV 2023"

    feature_epochs: Annotated[int, Field(ge=0)] = 5
    """Epochs of the backbone, at the run's `lr`."""
    iterations: Annotated[int, Field(ge=0)] = 5
    """How often classifier and projection take turns."""
    epochs: Annotated[int, Field(ge=1)] = 1
    """Epochs of each in a turn."""
    head_lr: Annotated[float, Field(gt=0)] = 0.1
    """Learning rate of the classifier."""
    projection_lr: Annotated[float, Field(gt=0)] = 0.05
    """Learning rate of the projection."""
    plain_head: bool = True  # class vectors learn without momentum and weight decay, as in the authors' code
    """Whether the class vectors learn without the run's momentum and weight decay."""

    def personalise(self, context: ClientContext) -> None:
        """Train the feature extractor."""
        trained = ("backbone.", "extras.temperature.")
        context.fit(self.feature_epochs, only=lambda name: name.startswith(trained), loss=CrossEntropy())

    def head_stages(self, method: Method, model: Model) -> Sequence[HeadStage]:
        """Classifier and projection (if there is one) in turn, with beta."""
        own = ("head.", "extras.temperature.")
        turns = [HeadStage(self.epochs, own, self.head_lr, CrossEntropy(), plain_steps=self.plain_head)]
        if "projection" in model.extras:
            own = ("extras.projection.", "extras.temperature.")
            turns.append(HeadStage(self.epochs, own, self.projection_lr, CrossEntropy()))
        return turns * self.iterations
