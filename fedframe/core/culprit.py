"""Which hook a client's training went wrong in, looked up once it has: nothing is checked batch by batch.

The first step starts from the server's weights, which are finite. A hook that gives NaN or infinite values there, from
values that are finite, is wrong by itself, and no learning rate would help.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedframe.core.client_context import ClientContext
from fedframe.core.client_loop import StepHooks, fit
from fedframe.core.message import all_finite
from fedframe.core.model import Model
from fedframe.core.part import Part
from fedframe.core.part_check import class_location


class HookError(Exception):
    """A hook has given NaN or infinite values; the text says which."""


@dataclass(frozen=True)
class Watched(Part):
    """A part whose hooks of a step are looked at."""

    part: Part

    def transform(self, model: Model, features: Tensor, context: ClientContext | None) -> Tensor:
        """The part's own, checked."""
        return self.checked("transform", self.part.transform(model, features, context), [features])

    def loss(self, logits: Tensor, labels: Tensor, context: ClientContext) -> Tensor:
        """The part's own and its gradient, checked."""
        value = self.checked("loss", self.part.loss(logits, labels, context), [logits])
        return self.with_finite_gradient("loss", value, context)

    def penalty(self, context: ClientContext) -> Tensor:
        """The part's own and its gradient, checked."""
        value = self.checked("penalty", self.part.penalty(context), [context.logits])
        return self.with_finite_gradient("penalty", value, context)

    def correct(self, context: ClientContext) -> None:
        """The part's own; gradients are checked before and after."""
        before = gradients(context)
        usable = all(all_finite(gradient) for gradient in before)
        self.part.correct(context)
        if usable and not all(all_finite(gradient) for gradient in gradients(context)):
            raise HookError(f"{class_location(type(self.part))}.correct makes gradients NaN or infinite")

    def checked(self, hook: str, value: Tensor, inputs: Sequence[Tensor]) -> Tensor:
        """What a hook returned, unless it is the first that is not finite."""
        if all(all_finite(each) for each in inputs) and not all_finite(value):
            raise HookError(f"{class_location(type(self.part))}.{hook} returns NaN or infinite values")
        return value

    def with_finite_gradient(self, hook: str, value: Tensor, context: ClientContext) -> Tensor:
        """A finite value, unless its gradient is not: that of a root or of a norm at zero, for example."""
        if value.requires_grad and all_finite(value):
            weights = list(context.named.values())
            found = torch.autograd.grad(value, weights, retain_graph=True, allow_unused=True)
            if not all(all_finite(each) for each in found if each is not None):
                where = f"{class_location(type(self.part))}.{hook}"
                raise HookError(f"the gradient of {where} is NaN or infinite (as that of a root or a norm at zero)")
        return value


def gradients(context: ClientContext) -> list[Tensor]:
    """The gradients of the batch under way."""
    return [weights.grad for weights in context.named.values() if weights.grad is not None]


def find_culprit(context: ClientContext, hooks: StepHooks) -> str | None:
    """Take the first step of a client again, with an eye on each hook; None if every one gives finite values."""
    watched = replace(
        hooks,
        transforms=tuple(Watched(part) for part in hooks.transforms),
        loss=Watched(hooks.loss),
        penalties=tuple(Watched(part) for part in hooks.penalties),
        corrections=tuple(Watched(part) for part in hooks.corrections),
    )
    try:
        fit(context, watched, epochs=1, steps=1)
    except HookError as found:
        return f"{found}, in a client's first step and at weights that are finite"
    except Exception:  # the training itself went through: what is known already is said
        return None
    return None
