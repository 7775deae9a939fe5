"""Fed-GraB: on every client a controller for each class weighs the gradients of its samples until they balance.

Xiao et al., Fed-GraB: Federated Long-tailed Learning with Self-Adjusting Gradient Balancer, NeurIPS 2023. Each class is
a sigmoid of its own, with the sum over classes of binary cross-entropy, mean over the batch. The gradient of a logit is
positive evidence for class c where the sample belongs to it, negative where it does not. With P_c and N_c the absolute
gradients of both kinds that a client has summed up so far, over all its rounds, and the error e = N_c - P_c, a
controller in its incremental form is moved before every batch:
    u_c <- u_c + K_P (e_0 - e_1) + K_I e_0 + K_D (e_0 - 2 e_1 + e_2)     e_0, e_1, e_2: this, the last, the one before
and positive gradients of class c are multiplied by 10 / (1 + 9 exp(-u_c / 20)), which is 1 where u_c = 0 and lies
between 0 and 10. K_P = K_I = K_D = 0 is FedAvg with the sigmoid loss.

Differs from the paper in: written from the authors' public code, in whose main script every class has a controller. The
paper's prior analyser, which estimates from the classifier which classes are in the tail, is left out. As there, the
controller's output is not bounded, and negative gradients keep their weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedframe.core import ClientContext, Key, Part

BALANCE = Key[Tensor]("fedgrab/balance")  # P_c - N_c, u_c, e_0 and e_1 by class (4, classes), in the client's memory
STATE = Key[Tensor]("fedgrab/state")  # the same while a round is under way
Gain = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class FedGraB(Part):
    """Sigmoids per class; a PID controller on the client weighs the gradients of each class's own samples."""

    name: ClassVar[str] = "fedgrab"
    paper: ClassVar[str] = "Xiao et al., Fed-GraB: Federated Long-tailed Learning, NeurIPS 2023"
    memory: ClassVar[tuple[str, ...]] = (BALANCE,)

    proportional: Gain = 10.0  # K_P
    """Gain of the proportional term of the controllers, K_P."""
    integral: Gain = 0.01  # K_I
    """Gain of the integral term of the controllers, K_I."""
    derivative: Gain = 0.1  # K_D
    """Gain of the derivative term of the controllers, K_D."""

    def begin(self, context: ClientContext) -> None:
        """Go on from where the client's controllers were."""
        if context.training:
            kept = context.memory.setdefault(BALANCE, torch.zeros(4, context.model.classes))
            context.scratch[STATE] = kept.to(context.start.device, copy=True)

    def loss(self, logits: Tensor, labels: Tensor, context: ClientContext) -> Tensor:
        """The sum of binary cross-entropies; in rounds its gradient is balanced."""
        targets = F.one_hot(labels, logits.shape[-1]).to(logits.dtype)
        if context.training and logits.requires_grad:
            weights = self.control(context.scratch[STATE])
            factors = weights * targets + (1 - targets)
            gradients = (logits.detach().sigmoid() - targets).abs() * factors / len(labels)
            context.scratch[STATE][0] += (gradients * (2 * targets - 1)).sum(0)
            logits = logits.view_as(logits)
            logits.register_hook(lambda gradient: gradient * factors)  # type: ignore[no-untyped-call]
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / len(labels)

    def control(self, state: Tensor) -> Tensor:
        """Move the controllers, in place; the weight of every class's positive gradients."""
        balance, output, last, before = state.clone()
        error = -balance
        output = output + self.proportional * (error - last) + self.integral * error
        output = output + self.derivative * (error - 2 * last + before)
        state[1], state[2], state[3] = output, error, last
        return 10 / (1 + 9 * torch.exp(-output / 20))

    def finish(self, context: ClientContext) -> None:
        """Keep the controllers for the next round."""
        context.memory[BALANCE] = context.scratch[STATE].cpu()

    def probabilities(self, logits: Tensor) -> Tensor:
        """The sigmoids, made to sum to 1."""
        each = logits.sigmoid().clamp_min(torch.finfo(logits.dtype).tiny)
        return each / each.sum(-1, keepdim=True)

    def row_losses(self, logits: Tensor, labels: Tensor, contexts: Sequence[ClientContext]) -> Tensor:
        """The loss of every sample of a stack of clients, without a balance."""
        targets = F.one_hot(labels, logits.shape[-1]).to(logits.dtype)
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(-1)
