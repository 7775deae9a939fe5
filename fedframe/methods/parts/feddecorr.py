"""FedDecorr: the numbers of a client's features are kept from saying the same thing.

Shi et al., Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated Learning, ICLR 2023.
Clients with few classes learn features that vary in a few directions only, and so does the mean of their models. With K
the correlation matrix of the d numbers of a feature over a batch, beta L is added to the loss:
    L = 1/d^2 ||K||_F^2
The diagonal of K is constant, so that only correlations of different numbers are pushed down.

Differs from the paper in: the authors' code, from which beta = 0.1 comes, has the mean over the d (d - 1) entries off
the diagonal of X'X, squared and divided by the batch size n, with X the standardised features; as X'X = (n - 1) K that
is (n - 1)^2 / n times the mean of the squared correlations. `form = code`, the default, is that; `form = paper` is the
formula above without its constant diagonal. The features are those that reach the classifier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Part
from fedframe.data.target import TASKS, Task

TINY = 1e-8  # added to variances: a number that is constant in a batch, such as a dead unit, correlates with none


@dataclass(frozen=True)
class FedDecorr(Part):
    """A penalty of weight beta on the correlations between the numbers of a feature; beta = 0 is FedAvg."""

    name: ClassVar[str] = "feddecorr"
    tasks: ClassVar[tuple[Task, ...] | None] = TASKS
    paper: ClassVar[str] = "Shi et al., Mitigating Dimensional Collapse in Heterogeneous Federated Learning, ICLR 2023"

    beta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    """Weight of the correlations; 0 is FedAvg."""
    form: Literal["code", "paper"] = "code"  # (n - 1)^2 / n times the mean square off the diagonal, or 1/d^2 ||K||^2
    """`code` computes the term as in the authors' code, `paper` as in the formula."""

    def penalty(self, context: ClientContext) -> Tensor:
        """beta L; nothing for a single sample, which has no correlations."""
        n, d = context.embedding.shape
        if not self.beta or n == 1 or d == 1:
            return context.embedding.new_zeros(())
        squares = squared_correlations(context.embedding)
        factor = (n - 1) ** 2 / n / (d * (d - 1)) if self.form == "code" else 1 / d**2
        return self.beta * factor * squares


def squared_correlations(features: Tensor) -> Tensor:
    """The sum of the squared correlations of all pairs of different numbers of a feature (batch, dim)."""
    centred = features - features.mean(0)
    standard = centred / (centred.square().sum(0) / (len(features) - 1) + TINY).sqrt()
    correlations = standard.T @ standard / (len(features) - 1)
    return correlations.square().sum() - correlations.diagonal().square().sum()
