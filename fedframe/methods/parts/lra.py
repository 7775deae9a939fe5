"""LRA, FedRANE's local relational augmentation: a sample's feature is refined by its neighbours in the batch.

Liao et al., Joint Local Relational Augmentation and Global Nash Equilibrium for Federated Learning with Non-IID Data,
ACM MM 2023, Section 3.3, in training only:
  (2, 3) relations   min_B 1/2 ||P - P B||^2 + lambda Tr(B' Phi B), diag B = 0, Phi = (B B')^(-1/2), P Pearson's matrix
  (5, 6) messages    h_i <- sum_j a_ij W h_j over i's neighbours in A = (|B| + |B'|) / 2, a by dot-product attention
  (7)    contrast    features before and after keep to each other, as against all others in the batch

Differs from the paper in: Eq. 4 minimises (3) only if Phi is diagonal; iterated as printed, the objective rises. The
exact column solution is B = T - H diag(T_jj / H_jj) with H = (P'P + lambda (Phi + Phi'))^-1 and T = H P'P; alternated
with Phi = (B B' + eps I)^(-1/2) it lowers 1/2 ||P - P B||^2 + 2 lambda Tr((B B' + eps I)^(1/2)) in every step.
Attention is multiplied by A and kept to each sample's strongest neighbours, so that the mined graph matters. A message
is mixed with the sample's own feature (four parts of five), so that both live on one scale; Eq. 5 has the messages
alone, `own_share` 0. The contrast weighs a tenth of the paper's: it drives samples of one class apart, too, and the
more it weighs, the lower Fashion-MNIST ends (docs/methods/fedrane.md). Prediction does without messages (it must not
depend on the neighbours in a batch; the contrast ties the two views together) unless `relational` is set.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedframe.core import ClientContext, Key, Model, Part

VIEWS = Key[tuple[Tensor, Tensor]]("lra/views")  # the batch before and after message passing


def pearson(features: Tensor) -> Tensor:
    """Correlation of every pair of samples over their features; a constant feature correlates with nothing."""
    centred = features - features.mean(1, keepdim=True)
    # What rounding leaves of a constant feature is no direction.
    varies = centred.norm(dim=1, keepdim=True) > 1e-6 * features.norm(dim=1, keepdim=True)
    directions = torch.where(varies, F.normalize(centred, dim=1), torch.zeros_like(centred))
    return directions @ directions.T


def mine_relations(similarity: Tensor, weight: float, iterations: int, smooth: float = 1e-3) -> Tensor:
    """B of Eq. 2 and 3 by alternating exact minimisation; zero diagonal.

    P'P squares the condition number, and features that have collapsed make its largest entry the square of the batch:
    it is solved in float64. Phi, whose eigenvalues cost the most, is found in the precision of what is given.
    """
    wide = similarity.double()
    square = wide.T @ wide
    eye = torch.eye(len(wide), dtype=wide.dtype, device=wide.device)
    phi = eye
    relations = torch.zeros_like(wide)
    for iteration in range(iterations):
        if iteration:
            values, vectors = torch.linalg.eigh((relations @ relations.T + smooth * eye).to(similarity.dtype))
            phi = ((vectors * values.clamp_min(smooth).rsqrt()) @ vectors.T).double()  # Eq. 3: (B B')^(-1/2)
        # Phi is symmetric, so Phi + Phi' = 2 Phi; the small ridge counts only where the weight is almost zero.
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(square + 2 * weight * phi + 1e-6 * eye))
        free = inverse @ square
        relations = free - inverse * (free.diagonal() / inverse.diagonal())  # in place of Eq. 4
        relations.fill_diagonal_(0.0)
    return relations.to(similarity.dtype)


def strongest_neighbours(relations: Tensor, count: int) -> Tensor:
    """A = (|B| + |B'|) / 2 with only the strongest entries of each row kept."""
    strength = (relations.abs() + relations.abs().T) / 2
    if count < len(strength):
        weakest_kept = strength.topk(count, dim=1).values[:, -1:]
        strength = torch.where(strength >= weakest_kept, strength, torch.zeros_like(strength))
    return strength


def contrast(before: Tensor, after: Tensor, temperature: float) -> Tensor:
    """Each sample finds its own augmented view among all 2 (B - 1) others."""
    count = len(before)
    similar = pearson(torch.cat([before, after])) / temperature
    itself = torch.eye(2 * count, dtype=torch.bool, device=similar.device)
    rows = similar.masked_fill(itself, -torch.inf)[:count]
    return F.cross_entropy(rows, torch.arange(count, 2 * count, device=similar.device))  # Eq. 7


class Messages(nn.Module):
    """The weights of one message-passing step: what is sent, and how receivers weigh senders."""

    def __init__(self, dim: int, own_share: float) -> None:
        super().__init__()
        self.own_share = own_share
        self.value = nn.Linear(dim, dim, bias=False)
        self.receive = nn.Linear(dim, dim, bias=False)
        self.send = nn.Linear(dim, dim, bias=False)
        with torch.no_grad():
            self.value.weight.copy_(torch.eye(dim))  # at first a message is the neighbours' mean

    def forward(self, features: Tensor, graph: Tensor) -> Tensor:
        """Pass messages on a graph of strengths; samples without neighbours keep their feature."""
        scores = self.receive(features) @ self.send(features).T / math.sqrt(features.shape[1])  # Eq. 6
        linked = graph > 0
        alone = ~linked.any(1, keepdim=True)
        # Strengths multiply attention before it is normalised: their logarithms are added, which cannot underflow.
        scores = scores + torch.where(linked, graph, graph.new_ones(())).log()
        attention = scores.masked_fill(~linked, -torch.inf).masked_fill(alone, 0.0).softmax(1)
        messages = attention @ self.value(features)  # Eq. 5
        return torch.where(alone, features, self.own_share * features + (1 - self.own_share) * messages)


@dataclass(frozen=True)
class RelationalAugmentation(Part):
    """Features refined by their neighbours in the batch, and a contrastive loss that keeps samples distinguishable."""

    name: ClassVar[str] = "lra"
    paper: ClassVar[str] = (
        "Liao et al., Joint Local Relational Augmentation and Global Nash Equilibrium (FedRANE), MM 2023"
    )
    rank: ClassVar[int] = -10  # acts on the backbone's own features

    steps: Annotated[int, Field(ge=1)] = 1
    """Steps of message passing, L."""
    neighbours: Annotated[int, Field(ge=1)] = 10
    """How many of its strongest relations a sample keeps."""
    own_share: Annotated[float, Field(ge=0, le=1)] = 0.8  # of a sample's own feature in the augmented one
    """Share rho of a sample's own feature; 0 leaves the messages alone."""
    relation_weight: Annotated[float, Field(gt=0)] = 0.1  # lambda_B
    """Weight of the term that mines relations, lambda_B."""
    iterations: Annotated[int, Field(ge=1)] = 2
    """How often relations are mined in a batch."""
    contrast_weight: Annotated[float, Field(ge=0)] = 0.02  # lambda_CD
    """Weight of the contrastive term, lambda_CD."""
    temperature: Annotated[float, Field(gt=0, le=1)] = 0.8  # tau
    """Temperature of the contrastive term, tau."""
    relational: bool = False  # pass messages in prediction too
    """Whether messages are passed in prediction, too."""

    def build(self, model: Model) -> None:
        """One set of weights per message-passing step."""
        model.extras["lra"] = nn.ModuleList(Messages(model.dim, self.own_share) for _ in range(self.steps))

    def transform(self, model: Model, features: Tensor, context: ClientContext | None) -> Tensor:
        """Augment the features of a batch by its relations."""
        wanted = self.relational or (context is not None and context.training)  # personal models as they will predict
        if not wanted or len(features) < 3:  # two samples have no relation to compare
            return features
        if not bool(features.detach().sum().isfinite()):
            return features  # training has diverged: no relations can be mined; the update will be refused as such
        graph = self.graph(features.detach())
        augmented = features
        layers = model.extras["lra"]
        assert isinstance(layers, nn.ModuleList)
        for layer in layers:
            augmented = layer(augmented, graph)
        if context is not None:
            context.scratch[VIEWS] = (features, augmented)
        return augmented

    @property
    def samplewise(self) -> bool:
        """Outside of rounds each sample is transformed by itself."""
        return not self.relational

    def graph(self, features: Tensor) -> Tensor:
        """The strengths of the relations in a batch."""
        relations = mine_relations(pearson(features), self.relation_weight, self.iterations)
        return strongest_neighbours(relations, self.neighbours)

    def penalty(self, context: ClientContext) -> Tensor:
        """lambda_CD times the contrast."""
        views = context.scratch.pop(VIEWS)
        if views is None or not self.contrast_weight:
            return context.embedding.new_zeros(())
        before, after = views
        return self.contrast_weight * contrast(before, after, self.temperature)  # Eq. 9: its second term
