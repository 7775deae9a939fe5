"""The local optimiser: one fused pass over the weights per step.

SGD, the optimiser of nearly every federated paper, calls torch's fused kernel directly. `torch.optim.SGD` calls the
same kernel, but making its first object imports torch's compiler: 1.7 s and 70 MB in every process, for nothing that is
used here. A test holds the two together bit for bit. Adam and AdamW are torch's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedframe.settings import Settings


class Optimizer(Protocol):
    """What the loop over batches needs of an optimiser."""

    def zero_grad(self) -> None:
        """Forget the gradients."""

    def step(self) -> Any:
        """Change the weights."""

    def state_dict(self) -> dict[str, Any]:
        """Momentum and the like, by the number of the weight."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""


class FusedSGD:
    """SGD with momentum, Nesterov momentum and weight decay, as torch defines them."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        lr: float,
        momentum: float,
        nesterov: bool,
        weight_decay: float,
    ) -> None:
        self.parameters = list(parameters)
        self.lr, self.momentum, self.nesterov, self.weight_decay = lr, momentum, nesterov, weight_decay
        self.velocity: dict[int, Tensor] = {}

    def zero_grad(self) -> None:
        """Forget the gradients; new ones are then written, not added."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        """v <- momentum v + g + decay w (v = g + decay w at first); w <- w - lr v."""
        indices = [i for i, parameter in enumerate(self.parameters) if parameter.grad is not None]
        if not self.momentum:
            self._update(indices, [], first=False)
            return
        new = [i for i in indices if i not in self.velocity]
        old = [i for i in indices if i in self.velocity]
        for i in new:
            self.velocity[i] = torch.empty_like(self.parameters[i])
        for group, first in ((old, False), (new, True)):
            if group:
                self._update(group, [self.velocity[i] for i in group], first)

    @torch.no_grad()
    def _update(self, indices: list[int], velocity: list[Tensor], first: bool) -> None:
        weights: list[Tensor] = [self.parameters[i] for i in indices]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        torch._fused_sgd_(
            as_in_memory(weights, weights),
            as_in_memory(gradients, weights),
            as_in_memory(velocity, weights),
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=self.lr,
            dampening=0.0,
            nesterov=self.nesterov,
            maximize=False,
            is_first_step=first,
        )

    def state_dict(self) -> dict[str, Any]:
        """Momentum by the number of the weight, in torch's form."""
        return {
            "state": {i: {"momentum_buffer": value} for i, value in self.velocity.items()},
            "param_groups": [],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take momentum back."""
        for i, state in state_dict["state"].items():
            self.velocity[i] = torch.empty_like(self.parameters[i]).copy_(state["momentum_buffer"])


def as_in_memory(tensors: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
    """The tensors of these weights; where a convolution's weights lie channels-last, as views with the channels last.

    The kernel is element-wise, so the order does not matter to what it computes. But it copies tensors whose dimensions
    are not in the order of their memory, and takes ten times as long.
    """
    turned = [weight.dim() == 4 and not weight.is_contiguous() for weight in weights[: len(tensors)]]
    return [each.permute(0, 2, 3, 1) if turn else each for each, turn in zip(tensors, turned, strict=True)]


def normalised_steps(steps: int, momentum: float = 0.0, nesterov: bool = False, pull: float = 0.0) -> float:
    """How far SGD walks, in units of lr, if every gradient is one: FedNova's ||a||_1.

    `pull` is lr mu of a proximal term. Dividing an update by it gives a mean of gradients, whatever the momentum.
    """
    way = velocity = 0.0
    for _ in range(steps):
        gradient = 1.0 - pull * way
        velocity = momentum * velocity + gradient
        way += gradient + momentum * velocity if nesterov else velocity
    return way


def without_momentum_and_decay(settings: Settings) -> Settings:
    """The settings of plain gradient steps."""
    return settings.model_copy(update={"momentum": 0.0, "nesterov": False, "weight_decay": 0.0})


def make_optimizer(settings: Settings, parameters: Sequence[nn.Parameter], lr: float) -> Optimizer:
    """A fresh optimiser, as the settings say."""
    if settings.optimizer == "sgd":
        return FusedSGD(parameters, lr, settings.momentum, settings.nesterov, settings.weight_decay)
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=lr, weight_decay=settings.weight_decay, fused=True)
