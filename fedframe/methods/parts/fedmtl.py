"""FedMTL: every client has a model of its own, and the server learns how the models are related (as MOCHA does).

Smith et al., Federated Multi-Task Learning, NeurIPS 2017, Eq. 1 and Algorithm 1, with the relations of Zhang and Yeung
(2010), for which their code is written. W has the clients' models w_k as columns:
    min_W,Omega   sum_k F_k(w_k) + lambda/2 Tr(W Omega W'),   Omega = Sigma^-1, Tr(Sigma) = 1
    client   g <- g + lambda sum_j Omega_kj w_j        the other models as the round began; the gradient of the term
    server   Sigma = (W'W)^(1/2) / Tr((W'W)^(1/2))     the minimiser for these models
Sigma starts as I/K. With lambda 0 every client trains alone, as in `local`.

Differs from the paper in: nets and local SGD, where MOCHA solves the dual of convex losses. Models that start alike
make W'W singular; a ridge times its mean diagonal is added (the code lifts eigenvalues to 1e-7), which bounds Omega by
(K / ridge)^(1/2) + K. Only weights are related, not statistics of BatchNorm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Key, Server, State
from fedframe.methods.parts.model_per_client import ModelPerClient

OMEGA = Key[Tensor]("fedmtl/omega")
PULL = Key[tuple[float, dict[str, Tensor]]]("fedmtl/pull")  # Omega_kk, and the sum of the others' by name


def relations(models: Tensor, ridge: float) -> Tensor:
    """Omega of these models (rows), in float64."""
    gram = models.double() @ models.double().T
    values, vectors = torch.linalg.eigh(gram)
    # W = 0 has no relations: any ridge then gives those of the beginning.
    roots = (values.clamp_min(0) + (ridge * gram.diagonal().mean()).clamp_min(1e-300)).sqrt()
    omega: Tensor = (vectors * (roots.sum() / roots)) @ vectors.T
    return omega


@dataclass(frozen=True)
class FedMTL(ModelPerClient):
    """A penalty of weight lam on models that deviate from the learned relations."""

    name: ClassVar[str] = "fedmtl"
    paper: ClassVar[str] = "Smith et al., Federated Multi-Task Learning, NeurIPS 2017"

    lam: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.001
    """Strength of the pull between related clients, lambda."""
    ridge: Annotated[float, Field(gt=0, le=1)] = 0.001
    """Added to the diagonal of W'W, in units of its mean."""

    def server_state(self, server: Server) -> dict[str, State]:
        """Start with Sigma = I/K, that is Omega = K I."""
        clients = len(server.job.federation)
        return {**super().server_state(server), OMEGA: State(clients * torch.eye(clients), broadcast=True)}

    def begin(self, context: ClientContext) -> None:
        """Start from the client's own model; add up the others' pull once."""
        if not context.training:
            return
        models, omega = context.received["fedmtl/models"], context.received[OMEGA]
        trainable = context.job.roles.layout.trainable
        with torch.no_grad():
            context.runtime.flat.copy_(models[context.client])
            row = omega[context.client].clone()
            own = float(row[context.client])
            row[context.client] = 0.0
            others = context.job.roles.layout.trainable_views(row @ models[:, :trainable])
        context.scratch[PULL] = (own, others)

    def correct(self, context: ClientContext) -> None:
        """g <- g + lambda sum_j Omega_kj w_j."""
        own, others = context.scratch[PULL]
        for name, weight in context.named.items():
            if self.lam and weight.grad is not None and name in others:
                weight.grad.add_(own * weight.detach() + others[name], alpha=self.lam)  # Eq. 1: its second term

    def finish(self, context: ClientContext) -> None:
        """Send the change of the client's own model."""
        context.reply["update"] = (context.runtime.flat - self.model_of(context)).cpu()

    def after_merge(self, server: Server, clients: int) -> None:
        """Compute the relations of the new models."""
        models = server.state["fedmtl/models"][:, : server.layout.trainable]
        server.state[OMEGA] = relations(models, self.ridge).float()

    def load_personal(self, context: ClientContext) -> None:
        """Load w_k; a client that was in no round trains the mean of the others' alone."""
        if self.was_in_training(context):
            with torch.no_grad():
                context.runtime.flat.copy_(self.model_of(context))
        elif context.kind == "personalise":
            context.train_missed_rounds(context.job.method.parts_with("predict"))
