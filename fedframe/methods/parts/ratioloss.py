"""Ratio Loss: classes that the shared model neglects weigh more, as a small balanced set on the server shows.

Wang et al., Addressing Class Imbalance in Federated Learning, AAAI 2021. After each round the server feeds its samples
of class j, the same number of every class, to the new model. g_j[p] is the gradient that they give to the class vector
w_p. Samples of class p pull w_p, those of other classes push it; of a favoured class the pull has become small:
    R_p = |g_p[p]| / mean_{j != p} |g_j[p]|         (|.|: the sum of absolute values)
    l   = (alpha + beta R_y) CE                     (on the clients, in the next round)
In the first round all weights are alpha. The server must hold labelled data: `samples` of every class are drawn from
the clients' training data, taken away from the clients, and the run's log says so. No test sample is among them. With
beta = 0 nothing is taken.

Differs from the paper in: it assumes public data for the server. R_p there is the mean of the ratios of single weights,
which a feature that is always zero makes 0/0; here it is the ratio of sums, as in the authors' code, over the whole
vector. R_p is at most `most`: theirs may grow to 5000, and so may the steps. Gradients are those of one step at the
shared model, in evaluation mode. The monitor's estimate of how many samples of each class a round has seen, which does
not enter the loss, is left out. The client stage has plain cross-entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Key, Method, Part, Server, State
from fedframe.core.batches import plain_batches
from fedframe.errors import SettingError
from fedframe.methods.parts.cross_entropy import CrossEntropy
from fedframe.settings import Settings

WEIGHTS = Key[Tensor]("ratioloss/weights")  # alpha + beta R_c by class


@dataclass(frozen=True)
class RatioLoss(Part):
    """Cross-entropy with class weights from gradients of the server's own samples."""

    name: ClassVar[str] = "ratioloss"
    compares_with_server: ClassVar[bool] = True
    paper: ClassVar[str] = "Wang et al., Addressing Class Imbalance in Federated Learning, AAAI 2021"

    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Weight of every class before the ratio is added."""
    beta: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    """Weight of the ratio."""
    samples: Annotated[int, Field(ge=1)] = 16  # of every class, on the server
    """Samples of every class that the server holds; at most half of a class's training samples."""
    most: Annotated[float, Field(gt=0)] = 50.0  # R_p is cut off here
    """Largest ratio, R."""

    def check_method(self, method: Method) -> None:
        """Refuse methods without a shared model, through which the server looks at its samples."""
        if not method.shares_a_model:
            raise SettingError(
                f"{method.name!r} cannot be combined: 'ratioloss' needs a shared model that predicts, and here a part "
                "of it stays on the clients; leave it out."
            )

    def check_settings(self, settings: Settings) -> None:
        """Refuse private BatchNorm statistics for the same reason."""
        if settings.buffers == "private":
            raise SettingError("ratioloss needs a shared model that predicts: buffers = 'private'; use average.")

    @property
    def server_samples(self) -> float:
        """Some samples of every class, unless the weights do not depend on them."""
        return self.samples if self.beta else 0

    def begin(self, context: ClientContext) -> None:
        """Keep the class weights of the round."""
        if context.training and self.beta:
            context.scratch[WEIGHTS] = context.received[WEIGHTS]

    def loss(self, logits: Tensor, labels: Tensor, context: ClientContext) -> Tensor:
        """(alpha + beta R_y) CE, mean over the batch; plain outside of rounds."""
        if not context.training:
            return F.cross_entropy(logits, labels)
        if not self.beta:
            return self.alpha * F.cross_entropy(logits, labels)
        weights: Tensor = context.scratch[WEIGHTS]
        return (weights[labels] * F.cross_entropy(logits, labels, reduction="none")).mean()

    def row_losses(self, logits: Tensor, labels: Tensor, contexts: Sequence[ClientContext]) -> Tensor:
        """Cross-entropy for every sample of a stack of clients."""
        return CrossEntropy().row_losses(logits, labels, contexts)

    def server_state(self, server: Server) -> dict[str, State]:
        """The class weights, all alike."""
        weights = torch.full((server.job.template.classes,), self.alpha)
        return {WEIGHTS: State(weights, broadcast=True)} if self.beta else {}

    def after_merge(self, server: Server, clients: int) -> None:
        """Compute new class weights with the new model."""
        if not self.beta:
            return
        source, rows = server.job.federation.source, server.job.federation.server_rows
        net = server.net()
        with torch.no_grad():
            batches = plain_batches(source, source.train, rows, server.job.settings.eval_batch)
            features = torch.cat([server.job.method.embed(net, inputs.to(server.job.device)) for inputs in batches])
            logits: Tensor = net.head(features)
        ratios = pull_by_push(features.double().cpu(), logits.double().cpu(), source.train.y[rows])
        weights = self.alpha + self.beta * ratios.clamp_max(self.most)
        server.state[WEIGHTS] = weights.float()
        server.figures |= {"ratioloss/lowest": float(weights.min()), "ratioloss/highest": float(weights.max())}


def pull_by_push(features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """R_p for every class; labels hold each class equally often."""
    classes = logits.shape[1]
    error = logits.softmax(1) - F.one_hot(labels, classes)  # d CE / d logit
    size = torch.zeros(classes, classes, dtype=logits.dtype)  # |g_j[p]| in row j
    for j in range(classes):
        size[j] = (error[labels == j].T @ features[labels == j]).abs().sum(1)  # d CE / d w_p = error_p h
    pull = size.diagonal()
    push = (size.sum(0) - pull) / (classes - 1)
    tiny = torch.finfo(push.dtype).tiny
    return pull / push.clamp_min(tiny)
