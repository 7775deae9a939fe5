"""CCVR: after the last round the server retrains the classifier, on features drawn from a Gaussian per class.

Luo et al., No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-IID Data, NeurIPS 2021.
Each client sends how many samples of class c it has, N_kc, and mean and covariance of their features. The server's
    mu_c  = sum_k N_kc mu_kc / N_c
    S_c   = (sum_k (N_kc - 1) S_kc + sum_k N_kc mu_kc mu_kc' - N_c mu_c mu_c') / (N_c - 1)
are those of all clients' samples together. It draws M_c virtual features from N(mu_c, S_c) for every class and trains
the classifier on them with cross-entropy, starting from where training left it (frozen classifiers too). Covariances
are symmetric: their lower triangles are sent.

Differs from the paper in: clients are added one by one to a running mean and scatter, which is the same sum without the
cancellation. A ridge of 1e-6 tr(S)/dim is added, and S is factored by its eigenvalues: with dead units, or fewer
samples than features, it has no Cholesky factor. Virtual features are used as drawn; the paper first applies ReLU
(`relu` does) and Tukey's power transform, which would have to become a part of the model in prediction.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedframe.core import ClientContext, Message, Method, Model, ModelSize, Part, Server, Upload
from fedframe.core.optimizers import FusedSGD
from fedframe.errors import SettingError
from fedframe.util.triangles import pack, triangle_size, unpack

MOMENTUM = 0.9  # of the SGD on the server
MOST_BYTES = 2 << 30  # of one client's covariances: the server holds two sets of them


@dataclass(frozen=True)
class CCVR(Part):
    """A classifier trained on virtual features, from class statistics of all clients."""

    name: ClassVar[str] = "ccvr"
    paper: ClassVar[str] = "Luo et al., No Fear of Heterogeneity, NeurIPS 2021"

    samples: Annotated[int, Field(ge=1)] = 500  # M_c, or its mean over classes
    """Virtual features per class, M_c."""
    share: Literal["equal", "data"] = "equal"  # every class alike, or as often as in the data
    """`equal` draws as many of every class, `data` in proportion to the data."""
    epochs: Annotated[int, Field(ge=1)] = 10
    """Epochs over the virtual features."""
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01
    """Learning rate on the server."""
    batch: Annotated[int, Field(ge=1)] = 64
    """Batch size on the server."""
    ridge: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-6
    """Added to the diagonal of the covariance, in units of its mean."""
    relu: bool = False  # virtual features below zero become zero: for nets whose features end in a ReLU
    """Whether virtual features below zero become zero, for nets whose features end in a ReLU."""

    def check_method(self, method: Method) -> None:
        """Refuse a method in which another classifier predicts than the one that is trained here."""
        for other in method.parts_with("predict"):
            raise SettingError(
                f"{method.name!r} cannot be combined: {other.name!r} predicts with a classifier of its own, so that "
                "'ccvr' would have no effect; leave one of them out."
            )

    def check_model(self, model: Model, clients: int) -> None:
        """Refuse covariances that would not fit into memory."""
        size = 8 * model.classes * triangle_size(model.dim)
        if size > MOST_BYTES:
            dim = int((MOST_BYTES / 4 / model.classes) ** 0.5) - 1
            raise SettingError(
                f"ccvr sends a covariance per class, {size / 2**30:.1f} GB from every client ({model.classes} classes, "
                f"{model.dim} features); choose a net with at most {dim} features or add +projection."
            )

    def statistics(self, context: ClientContext) -> dict[str, Tensor]:
        """N_kc, mu_kc and S_kc; zero for what a client cannot know."""
        features = context.embeddings().double().cpu()
        labels = context.job.federation.source.train.y[context.rows]
        means, covariances = class_statistics(features, labels, context.model.classes)
        return {"ccvr/counts": context.class_counts.double(), "ccvr/means": means, "ccvr/covariances": covariances}

    def uploads(self, size: ModelSize) -> dict[str, Upload]:
        """(classes), (classes, dim), and for every class the triangle of (dim, dim)."""
        classes, dim = size.classes, size.dim
        shapes = {"counts": [classes], "means": [classes, dim], "covariances": [classes, triangle_size(dim)]}
        return {f"ccvr/{name}": Upload(shape, "each", when="statistics") for name, shape in shapes.items()}

    def server_stage(self, server: Server, replies: Iterable[Message]) -> None:
        """Put the statistics together, draw virtual features, and train the classifier on them."""
        template = server.job.template
        pool = Pool(template.classes, template.dim)
        for reply in replies:
            pool.add(*(reply.tensors[f"ccvr/{name}"] for name in ("counts", "means", "covariances")))
        generator = server.generator("ccvr")
        features, labels = self.draw(pool, generator)
        if not len(labels):
            server.note("ccvr: no client's statistics could be used; the classifier stays as it is.")
            return
        head = copy.deepcopy(server.net().head).requires_grad_()  # also one that is frozen in rounds
        self.train(head, features.float(), labels, generator)
        for name, tensor in head.state_dict().items():
            server.set_tensor(f"head.{name}", tensor.cpu())

    def draw(self, pool: Pool, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw M_c features of every class that some client has."""
        known = pool.counts > 0
        wanted = known * self.samples
        if self.share == "data":
            wanted = (pool.counts / pool.counts.sum() * known.sum() * self.samples).round().clamp_min(1) * known
        drawn = []
        for c, count in enumerate(wanted.long().tolist()):
            noise = torch.randn(count, pool.means.shape[1], generator=generator, dtype=torch.float64)
            drawn.append(pool.means[c] + noise @ root(pool.covariance(c), self.ridge))
        features, labels = torch.cat(drawn), torch.arange(len(wanted)).repeat_interleave(wanted.long())
        return features.clamp_min(0) if self.relu else features, labels

    def train(self, head: nn.Module, features: Tensor, labels: Tensor, generator: torch.Generator) -> None:
        """SGD with momentum on cross-entropy."""
        weights = list(head.parameters())
        device = weights[0].device
        optimizer = FusedSGD(weights, self.lr, MOMENTUM, nesterov=False, weight_decay=0.0)
        for _ in range(self.epochs):
            for rows in torch.randperm(len(labels), generator=generator).split(self.batch):  # type: ignore[no-untyped-call]
                optimizer.zero_grad()
                loss = F.cross_entropy(head(features[rows].to(device)), labels[rows].to(device))
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()


def class_statistics(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Mean and triangle of the (unbiased) covariance of every class; zero where there are too few samples."""
    dim = features.shape[1]
    means, covariances = features.new_zeros(classes, dim), features.new_zeros(classes, triangle_size(dim))
    for c in torch.bincount(labels, minlength=classes).nonzero().flatten().tolist():
        own = features[labels == c]
        means[c] = own.mean(0)
        centred = own - means[c]
        covariances[c] = pack(centred.T @ centred / max(len(own) - 1, 1))
    return means, covariances


class Pool:
    """Counts, means and triangles of the scatter of all samples so far, by class (Chan, Golub, LeVeque)."""

    def __init__(self, classes: int, dim: int) -> None:
        self.counts = torch.zeros(classes, dtype=torch.float64)
        self.means = torch.zeros(classes, dim, dtype=torch.float64)
        self.scatter = torch.zeros(classes, triangle_size(dim), dtype=torch.float64)

    def add(self, counts: Tensor, means: Tensor, covariances: Tensor) -> None:
        """Take one client's statistics."""
        for c in (counts >= 1).nonzero().flatten().tolist():
            old, new = float(self.counts[c]), float(counts[c])
            shift = means[c] - self.means[c]
            self.scatter[c] += (new - 1) * covariances[c] + old * new / (old + new) * pack(torch.outer(shift, shift))
            self.means[c] += new / (old + new) * shift
            self.counts[c] += new

    def covariance(self, c: int) -> Tensor:
        """S_c; zero with fewer than two samples."""
        return unpack(self.scatter[c] / max(float(self.counts[c]) - 1, 1.0), self.means.shape[1])


def root(covariance: Tensor, ridge: float) -> Tensor:
    """The symmetric R with RR = S + ridge tr(S)/dim I, whatever the rank of S; nearly equal S give nearly equal R."""
    values, vectors = torch.linalg.eigh(covariance)
    values = values.clamp_min(0) + ridge * covariance.diagonal().mean()
    symmetric: Tensor = (vectors * values.sqrt()) @ vectors.T
    return symmetric
