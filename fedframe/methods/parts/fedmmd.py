"""FedMMD: the features of a batch keep to the distribution that the server's model gives them.

Yao et al., Two-Stream Federated Learning: Reduce the Communication Costs, VCIP 2018 (arXiv 1908.05891). To the loss is
added lambda MMD^2(X, Y), with X the batch's features under the model in training, Y under the server's model, frozen:
    MMD^2 = mean k(x, x') + mean k(y, y') - 2 mean k(x, y),    k(x, y) = sum_i exp(-||x - y||^2 / (2 s_i))
Means are over all pairs, the pair of a sample with itself included: the biased estimate. X and Y come from the same
samples, so the unbiased one would not be unbiased here, and it is negative where X = Y; this one is never negative and
zero exactly there.

Differs from the paper in: the s_i are multiples of the mean squared distance in the batch (without gradient), so that
they suit features of any size; the authors' code has 19 fixed ones from 1e-6 to 1e6. The features are those that reach
the classifier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Part
from fedframe.data.target import TASKS, Task
from fedframe.methods.parts.teacher import load_teacher, teacher

Width = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class FedMMD(Part):
    """A penalty of weight lambda on the discrepancy between local and global features."""

    name: ClassVar[str] = "fedmmd"
    tasks: ClassVar[tuple[Task, ...] | None] = TASKS
    compares_with_server: ClassVar[bool] = True
    paper: ClassVar[str] = "Yao, Huang, Sun: Two-Stream Federated Learning: Reduce the Communication Costs, VCIP 2018"

    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1  # lambda
    """Weight of the distance between feature distributions, lambda; 0 is FedAvg."""
    widths: Annotated[tuple[Width, ...], Field(min_length=1)] = (0.25, 0.5, 1.0, 2.0, 4.0)  # s_i, relative
    """Widths of the Gaussian kernels, relative to the mean squared distance."""

    def begin(self, context: ClientContext) -> None:
        """Keep the model as it starts."""
        if context.training and self.weight:
            load_teacher(context)

    def penalty(self, context: ClientContext) -> Tensor:
        """lambda MMD^2."""
        if not self.weight:
            return context.embedding.new_zeros(())
        with torch.no_grad():
            shared = context.job.method.embed(teacher(context), context.inputs)
        return self.weight * squared_mmd(context.embedding, shared, self.widths)


def squared_mmd(x: Tensor, y: Tensor, widths: Sequence[float]) -> Tensor:
    """The biased estimate of MMD^2 with a sum of Gaussian kernels."""
    both, n = torch.cat([x, y]), len(x)
    # By differences: of nearly equal features |a|^2 + |b|^2 - 2ab would leave nothing but rounding.
    distances = torch.cdist(both, both, compute_mode="donot_use_mm_for_euclid_dist").square()  # (2n, 2n)
    mean = distances.detach().sum() / (2 * n * (2 * n - 1))
    scale = torch.where(mean > 0, mean, torch.ones_like(mean))  # all features alike: any width gives zero
    kernel = torch.stack([torch.exp(-distances / (2 * width * scale)) for width in widths]).sum(0)
    return kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean()
