"""APPLE: a client's model is a mixture of all clients' core models, with weights that it learns.

Luo and Wu, Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning, IJCAI 2022. Client k has a
core model w_k, which it uploads, and a directed relation vector p_k, which it keeps:
    v_k = sum_j p_kj w_j                                                                    its own model
    F_k(v_k) + lambda(r) mu/2 ||p_k - p_0||^2,   p_0j = n_j / n                             what it minimises
    w_k <- w_k - lr p_kk g,   p_kj <- p_kj - p_lr (<g, w_j> + lambda(r) mu (p_kj - p_0j))   g the gradient at v_k
lambda(r) falls from 1 to 0 in the first rounds, so that training goes from a common model to own ones.

Differs from the paper in: all core models start from the same initial model. Statistics of BatchNorm are a client's own
and not mixed: a mixture with negative weights has no variance. Every core model is sent to every client of a round; the
paper's choice of a few under limited bandwidth is not implemented.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Key
from fedframe.methods.parts.model_per_client import ModelPerClient

LOWEST = 1e-3  # where the exponential schedule ends


@dataclass
class Mixture:
    """What a client needs to mix: the others' models as they came, and what it learns."""

    models: Tensor  # (clients, trainable)
    core: Tensor  # (trainable)
    mine: int  # its place in p; for a new client, behind the others
    p: Tensor
    p0: Tensor
    slope: Tensor  # of the loss along p
    velocity: Tensor

    def mixed(self) -> Tensor:
        """The client's own model v_k."""
        others = self.p[: len(self.models)].clone()
        others[self.mine : self.mine + 1] = 0.0
        return others @ self.models + self.p[self.mine] * self.core


P = Key[Tensor]("apple/p")  # p_k, in the client's memory
MIXTURE = Key[Mixture]("apple/mixture")


@dataclass(frozen=True)
class Apple(ModelPerClient):
    """Mixtures of all core models with learned weights."""

    name: ClassVar[str] = "apple"
    paper: ClassVar[str] = "Luo and Wu, Adapt to Adaptation: Learning Personalization for Cross-Silo FL, IJCAI 2022"
    memory: ClassVar[tuple[str, ...]] = (P,)

    mu: Annotated[float, Field(ge=0)] = 0.1
    """Weight of the pull towards the mixing weights of FedAvg."""
    p_rate: Annotated[float, Field(ge=0)] = 0.1  # the learning rate of p_k, as a multiple of lr
    """Learning rate of the mixing weights, as a multiple of the run's `lr`."""
    schedule: Literal["exponential", "cosine"] = "exponential"
    """How the pull fades: `exponential` or `cosine`."""
    common_share: Annotated[float, Field(ge=0, le=1)] = 0.1  # of the rounds in which lambda(r) is above 0
    """Share of the rounds after which the pull is gone."""

    def weight(self, round: int, rounds: int) -> float:
        """lambda(r), with r = 0 in the first round."""
        last = int(self.common_share * rounds)
        if round > last:
            return 0.0
        done = (round - 1) / last
        return (1 + math.cos(math.pi * done)) / 2 if self.schedule == "cosine" else LOWEST**done

    def begin(self, context: ClientContext) -> None:
        """Start the round from the mixture."""
        if context.training:
            self.mix(context)

    @torch.no_grad()
    def mix(self, context: ClientContext) -> Mixture:
        """Prepare, and put v_k into the model; its statistics are those of the client's core model."""
        flat, trainable = context.runtime.flat, context.job.roles.layout.trainable
        models, samples = context.received["apple/models"], context.received["apple/samples"]
        own, mine = self.model_of(context), context.client
        if len(models) != len(context.job.federation):  # a new client, after all others
            mine, samples = len(models), torch.cat([samples, samples.new_tensor([len(context.rows)])])
        p0 = samples / samples.sum()
        p = context.memory.get(P, p0).to(flat.device, copy=True)
        zeros = torch.zeros_like(p)
        mixture = Mixture(models[:, :trainable], own[:trainable].clone(), mine, p, p0, zeros, zeros.clone())
        context.scratch[MIXTURE] = mixture
        flat.copy_(own)
        flat[:trainable] = mixture.mixed()
        return mixture

    @torch.no_grad()
    def correct(self, context: ClientContext) -> None:
        """Turn the gradient at v_k into those of p_k and w_k, and put w_k into the model for the optimiser."""
        mixture = context.scratch[MIXTURE]
        g = torch.zeros_like(mixture.core)
        gradients, cores = (context.job.roles.layout.trainable_views(flat) for flat in (g, mixture.core))
        for name, weight in context.named.items():
            if name in gradients and weight.grad is not None:  # what is private is no part of the mixture
                gradients[name].copy_(weight.grad)
                weight.grad.mul_(mixture.p[mixture.mine])
                weight.copy_(cores[name])
        along = mixture.models @ g
        mixture.slope = torch.cat([along, along.new_zeros(len(mixture.p) - len(along))])
        mixture.slope[mixture.mine] = mixture.core @ g  # where it is now, not where the round began
        pull = self.mu * self.weight(context.round, context.job.settings.rounds)
        mixture.slope += pull * (mixture.p - mixture.p0)

    def step(self, context: ClientContext) -> Tensor:
        """A step of w_k along its gradient, then one of p_k."""
        loss = context.compute_gradient()
        context.apply_gradient()
        self.move(context)
        return loss

    @torch.no_grad()
    def move(self, context: ClientContext) -> None:
        """Take w_k out of the model, move p_k, mix again."""
        mixture = context.scratch[MIXTURE]
        cores = context.job.roles.layout.trainable_views(mixture.core)
        for name, weight in context.named.items():
            if name in cores:
                cores[name].copy_(weight)
        mixture.velocity = context.job.settings.momentum * mixture.velocity + mixture.slope
        mixture.p -= self.p_rate * context.lr * mixture.velocity
        context.runtime.flat[: len(mixture.core)] = mixture.mixed()

    def finish(self, context: ClientContext) -> None:
        """Send the change of w_k; p_k stays on the client."""
        mixture = context.scratch[MIXTURE]
        core = torch.cat([mixture.core, context.runtime.flat[len(mixture.core) :]])
        context.reply["update"] = (core - self.model_of(context)).cpu()
        context.memory[P] = mixture.p.cpu()

    def load_personal(self, context: ClientContext) -> None:
        """Load v_k; a client that was in no round learns a core model, from the mean, and its weights."""
        self.mix(context)
        if not self.was_in_training(context) and context.kind == "personalise":
            context.train_missed_rounds((*context.job.method.parts_with("predict"), self))
