"""CReFF: the server retrains the classifier on features made from the clients' gradients, as many of every class.

Shang et al., Federated Learning on Heterogeneous and Long-Tailed Data via Classifier Re-Training with Federated
Features, IJCAI 2022. Beside FedAvg's model there is a retrained classifier W'. In every round
    client: for each class c that it has, the gradient g_kc of cross-entropy with respect to W', mean over its samples
    server: g_c, the mean of g_kc over the clients that have class c;
            m federated features of every class move so that they give W' the same gradients g'_c: `match_steps` of
            gradient descent on  sum_c sum_rows (1 - cos(g_c[row], g'_c[row]))
            W' is trained from a random start on the federated features, as many for every class
After the last round W' takes the classifier's place. The rounds themselves are FedAvg's, bit for bit.

Differs from the paper in: a client's gradients are means over all samples of a class, without augmentation (the
authors' code: ten random batches of 32). W' starts as the model's own classifier. Scores between rounds are those of
FedAvg's model. Only sums leave the clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Key, Method, ModelSize, Part, Server, State, Upload
from fedframe.data.target import Task
from fedframe.errors import SettingError
from fedframe.methods.parts.linear_head import LinearHead

if TYPE_CHECKING:
    from fedframe.core.job import Job

FEATURES = Key[Tensor]("creff/features")  # (classes, m, dim), on the server
CLASSIFIER = Key[Tensor]("creff/classifier")  # W' and, as a last column, its bias (classes, dim + 1)
GRADIENTS, HELD = Key[Tensor]("creff/gradients"), Key[Tensor]("creff/held")  # what a client sends
FOUND = Key[tuple[Tensor, Tensor]]("creff/found")  # the same until the end of its round
TINY = 1e-6  # in the denominator of a cosine, as in the authors' code


@dataclass(frozen=True)
class CReFF(Part):
    """A classifier that the server retrains on features whose gradients match the clients', as many of each class."""

    name: ClassVar[str] = "creff"
    tasks: ClassVar[tuple[Task, ...] | None] = ("classification",)
    paper: ClassVar[str] = "Shang et al., Classifier Re-Training with Federated Features, IJCAI 2022"

    features: Annotated[int, Field(ge=1)] = 100  # m, per class
    """Federated features per class."""
    match_steps: Annotated[int, Field(ge=1)] = 100
    """Steps per round that match gradients."""
    match_lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    """Learning rate of the steps that match gradients."""
    epochs: Annotated[int, Field(ge=1)] = 300
    """Epochs of retraining the classifier, per round."""
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01
    """Learning rate of retraining."""
    batch: Annotated[int, Field(ge=1)] = 32
    """Batch size of retraining."""

    def check_method(self, method: Method) -> None:
        """Refuse methods in which the retrained classifier would have no place."""
        others = [*method.parts_with("predict"), *([] if isinstance(method.slot("head"), LinearHead) else ["head"])]
        if others or not method.shares_a_model:
            raise SettingError(
                f"{method.name!r} cannot be combined: 'creff' retrains the learned classifier 'linear' of a shared "
                "model, and here there is none that predicts; leave creff out."
            )

    def server_state(self, server: Server) -> dict[str, State]:
        """Random features, and the model's own classifier."""
        classes, dim = server.size.classes, server.size.dim
        drawn = torch.randn(classes, self.features, dim, generator=server.generator("creff/features"))
        bias = server.tensor("head.bias") if self.has_bias(server) else torch.zeros(classes)
        classifier = torch.cat([server.tensor("head.weight"), bias[:, None]], 1).clone()
        return {FEATURES: State(drawn), CLASSIFIER: State(classifier, broadcast=True)}

    def uploads(self, size: ModelSize) -> dict[str, Upload]:
        """The gradient of every class (classes, classes, dim + 1), zero for one that is lacking; and which are held."""
        shape = [size.classes, size.classes, size.dim + 1]
        return {GRADIENTS: Upload(shape, "sum"), HELD: Upload([size.classes], "sum")}

    def begin(self, context: ClientContext) -> None:
        """Compute the gradients with the server's model, before it is trained."""
        if context.training:
            features, classes = context.embeddings(), context.model.classes
            labels = context.job.federation.source.train.y[context.rows].to(features.device)
            gradients = class_gradients(features, labels, context.received[CLASSIFIER])
            context.scratch[FOUND] = (gradients, (torch.bincount(labels, minlength=classes) > 0).float())

    def finish(self, context: ClientContext) -> None:
        """Send them."""
        gradients, held = context.scratch[FOUND]
        context.reply |= {GRADIENTS: gradients.cpu(), HELD: held.cpu()}

    def after_merge(self, server: Server, clients: int) -> None:
        """Move the federated features, and retrain the classifier on them."""
        held = server.total(HELD)
        wanted = (server.total(GRADIENTS) / held.clamp_min(1)[:, None, None]).float()
        features, bias = server.state[FEATURES], self.has_bias(server)
        for _ in range(self.match_steps):
            leaf = features.clone().requires_grad_()
            with torch.enable_grad():
                distance = mismatch(leaf, server.state[CLASSIFIER], wanted, held > 0, bias)
                (gradient,) = torch.autograd.grad(distance, leaf)
            features = features - self.match_lr * gradient
        server.state[FEATURES] = features
        server.state[CLASSIFIER] = self.retrain(features, server.generator("creff/retrain"), bias)
        server.figures["creff/mismatch"] = float(distance.detach()) / max(1, int((held > 0).sum()))

    def furthest(self, longest: Mapping[str, float], round: int, job: Job) -> Mapping[str, float] | None:
        """In rounds the model is as without it, and the classifier beside it is trained from a random start."""
        return {}

    def retrain(self, features: Tensor, generator: torch.Generator, bias: bool) -> Tensor:
        """A linear classifier from a random start, by SGD on cross-entropy."""
        classes, _, dim = features.shape
        inputs = with_ones(features.flatten(0, 1))
        labels = torch.arange(classes).repeat_interleave(features.shape[1])
        weight: Tensor = (torch.rand(classes, dim + 1, generator=generator) * 2 - 1) * dim**-0.5
        weight[:, -1] *= bias
        for _ in range(self.epochs):
            for rows in torch.randperm(len(labels), generator=generator).split(self.batch):  # type: ignore[no-untyped-call]
                error = (inputs[rows] @ weight.T).softmax(1) - F.one_hot(labels[rows], classes)
                change = error.T @ inputs[rows]
                change[:, -1] *= bias
                weight = weight - self.lr / len(rows) * change
        return weight

    def after_rounds(self, server: Server) -> None:
        """The retrained classifier takes the model's place."""
        server.set_tensor("head.weight", server.state[CLASSIFIER][:, :-1])
        if self.has_bias(server):
            server.set_tensor("head.bias", server.state[CLASSIFIER][:, -1])

    def has_bias(self, server: Server) -> bool:
        """Whether the model's classifier has one."""
        return "head.bias" in dict(server.job.template.named_parameters())


def with_ones(features: Tensor) -> Tensor:
    """Features with a last number of 1, whose weight is the bias."""
    return torch.cat([features, features.new_ones(*features.shape[:-1], 1)], -1)


def class_gradients(features: Tensor, labels: Tensor, classifier: Tensor) -> Tensor:
    """The gradient of the mean cross-entropy of every class's samples with respect to the classifier."""
    inputs, classes = with_ones(features), len(classifier)
    error = (inputs @ classifier.T).softmax(1) - F.one_hot(labels, classes)  # d CE / d logits
    found = features.new_zeros(classes, *classifier.shape)
    for c in torch.bincount(labels, minlength=classes).nonzero().flatten().tolist():
        own = labels == c
        found[c] = error[own].T @ inputs[own] / own.sum()
    return found


def mismatch(features: Tensor, classifier: Tensor, wanted: Tensor, held: Tensor, bias: bool) -> Tensor:
    """How far the gradients of federated features (classes, m, dim) are from the wanted ones, over classes held."""
    inputs = with_ones(features)
    error = (inputs @ classifier.T).softmax(-1) - torch.eye(len(classifier))[:, None]
    given = torch.einsum("cmk,cmd->ckd", error, inputs) / features.shape[1]
    distance = one_minus_cosine(given[..., :-1], wanted[..., :-1]).sum(1)
    if bias:
        distance = distance + one_minus_cosine(given[..., -1], wanted[..., -1])  # the bias counts as one row
    return distance[held].sum()


def one_minus_cosine(a: Tensor, b: Tensor) -> Tensor:
    """1 - cos along the last dimension."""
    cosine: Tensor = (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1) + TINY)
    return 1 - cosine
