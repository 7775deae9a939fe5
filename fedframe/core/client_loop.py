"""The client's side of training: the one loop over batches, for every method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedframe.core.batches import training_batches
from fedframe.core.client_context import ClientContext
from fedframe.core.hook_errors import call_in_place, returned_number, returned_tensor
from fedframe.core.job import Job
from fedframe.core.method import Method, parts_with
from fedframe.core.optimizers import make_optimizer, without_momentum_and_decay
from fedframe.core.part import Part
from fedframe.core.precision import LossScale
from fedframe.data.augment import read_augment
from fedframe.errors import RunError


@dataclass(frozen=True)
class StepHooks:
    """Training hooks, resolved once so that unused hooks cost nothing."""

    transforms: tuple[Part, ...]
    loss: Part
    penalties: tuple[Part, ...]
    corrections: tuple[Part, ...]
    epochs: tuple[Part, ...]
    batches: tuple[Part, ...]
    step: Part | None

    @classmethod
    def of(cls, method: Method, parts: Sequence[Part], loss: Part | None = None) -> StepHooks:
        """The method's transforms and loss (or another), and the other hooks of these parts only."""
        return cls(
            method.parts_with("transform"),
            loss or method.slot("loss"),
            parts_with(parts, "penalty"),
            parts_with(parts, "correct"),
            parts_with(parts, "begin_epoch"),
            parts_with(parts, "begin_batch"),
            next(iter(parts_with(parts, "step")), None),
        )


def fit(
    context: ClientContext,
    hooks: StepHooks,
    epochs: int,
    steps: int | None = None,
    only: Callable[[str], bool] | None = None,
    keeps_optimizer: bool = False,
) -> float:
    """Train some weights; which of them learn, and with which hooks, is as before when it is over."""
    parameters = dict(context.model.named_parameters())
    before = {name: p.requires_grad for name, p in parameters.items()}
    outer, context.hooks = context.hooks, hooks
    try:
        if only is not None:
            for name, p in parameters.items():
                p.requires_grad_(only(name) and not context.model.is_frozen(name))
        context.named = {name: p for name, p in parameters.items() if p.requires_grad}
        return loop_over_batches(context, epochs, steps, keeps_optimizer)
    finally:
        context.hooks = outer
        for name, p in parameters.items():
            p.requires_grad_(before[name])


def loop_over_batches(context: ClientContext, epochs: int, steps: int | None, keeps_optimizer: bool) -> float:
    """`epochs` times through the client's data, or `steps` batches."""
    job, device, hooks = context.job, context.start.device, context.hooks
    assert hooks is not None
    settings = without_momentum_and_decay(job.settings) if context.plain_steps else job.settings
    context.optimizer = make_optimizer(settings, list(context.named.values()), context.lr)
    context.loss_scale = LossScale() if job.settings.precision == "fp16" else None
    if keeps_optimizer:
        restore_optimizer(context)
    # After training, a backbone that learns nothing stays as it is: no statistics of the batch, nothing at random.
    still = not context.training and not any(name.startswith("backbone.") for name in context.named)
    set_training_mode(job, context)
    if still:
        context.model.backbone.eval()
    losses: list[Tensor] = []
    sizes: list[int] = []
    limit = steps if steps is not None else -1
    epoch = 0
    while limit != 0 and (steps is not None or epoch < epochs):
        for part in hooks.epochs:
            call_in_place(part, "begin_epoch", context, epoch)
        for inputs, labels, rows in training_batches(
            job.federation.source,
            context.rows,
            job.settings.batch,
            context.generator,
            read_augment("none") if still else job.augment,
            lonely_last=not job.batch_norm,
        ):
            context.inputs, context.labels = inputs.to(device), labels.to(device)
            context.batch_rows = rows
            for part in hooks.batches:
                call_in_place(part, "begin_batch", context)
            loss = gradient_step(context) if hooks.step is None else own_step(context, hooks)
            context.steps += 1
            limit -= 1
            losses.append(loss.detach())
            sizes.append(len(labels))
            if limit == 0:
                break
        epoch += 1
    if keeps_optimizer:
        keep_optimizer(context)
    return mean_loss(losses, sizes)


def mean_loss(losses: Sequence[Tensor], sizes: Sequence[int]) -> float:
    """The mean over samples of the batches' losses, summed in float32 and in their order.

    They are added up when training is over: in every step, three operations on single numbers would be a twentieth of
    what a small net takes.
    """
    total = np.float32(0)
    for loss, size in zip(torch.stack([*losses]).tolist() if losses else [], sizes, strict=True):
        total += np.float32(loss) * np.float32(size)
    return float(total) / max(sum(sizes), 1)


def own_step(context: ClientContext, hooks: StepHooks) -> Tensor:
    """A step that a part takes itself; without the loop's gradient, whatever else parts say about a step is lost."""
    assert hooks.step is not None
    before = context.gradients
    loss = returned_number(hooks.step.step(context), hooks.step, "step")
    if context.gradients == before and (silenced := silenced_hooks(context, hooks)):
        part, hook = silenced[0]
        raise RunError(
            f"The part {hooks.step.name!r} takes its step without context.compute_gradient(), so that {hook!r} of "
            f"{part.name!r} has no effect; call it in 'step', or leave one of them out."
        )
    return loss.detach().clone()  # a part may use the memory of its loss again


def silenced_hooks(context: ClientContext, hooks: StepHooks) -> list[tuple[Part, str]]:
    """The hooks that only the loop's own gradient calls; a loss that nobody chose may be left out."""
    chosen = [] if hooks.loss.name in context.job.method.defaults else [hooks.loss]
    named = {"loss": chosen, "transform": hooks.transforms, "penalty": hooks.penalties, "correct": hooks.corrections}
    return [(part, hook) for hook, parts in named.items() for part in parts]


def checked_penalty(penalty: Tensor, part: Part, context: ClientContext) -> Tensor:
    """The penalty, unless it has no gradient although all weights are trained: then it would be ignored."""
    if penalty.requires_grad or not context.training or not bool((penalty != 0).any()):
        return penalty
    if all(weight.requires_grad for weight in context.named.values()):
        raise RunError(
            f"The penalty of the part {part.name!r} has no gradient, so that training would ignore it; compute it from "
            "context.features, context.logits or the model's weights, without torch.no_grad() and detach()."
        )
    return penalty


def gradient_step(context: ClientContext) -> Tensor:
    """One optimiser step on one batch; returns the batch's loss."""
    loss = compute_gradient(context)
    context.apply_gradient()
    return loss


def compute_gradient(context: ClientContext) -> Tensor:
    """The loss of the batch at the weights as they stand; its gradient, corrected and clipped, is left in `.grad`."""
    hooks = context.hooks
    assert hooks is not None
    context.features = features = context.runtime.batch_features(context)
    for part in hooks.transforms:
        features = returned_tensor(part.transform(context.model, features, context), part, "transform")
    context.embedding = features
    context.logits = context.model.head(features)
    logits = weigh_gradient(context.logits, context.labels, context.job.class_weights)
    loss = returned_number(hooks.loss.loss(logits, context.labels, context), hooks.loss, "loss")
    for part in hooks.penalties:
        loss = loss + checked_penalty(returned_number(part.penalty(context), part, "penalty"), part, context)
    context.gradients += 1
    context.optimizer.zero_grad()
    if context.loss_scale is None:
        loss.backward()  # type: ignore[no-untyped-call]
    else:
        context.loss_scale.backward(loss, context.named.values())
    for part in hooks.corrections:
        call_in_place(part, "correct", context)
    if context.job.settings.clip is not None:
        nn.utils.clip_grad_norm_(context.named.values(), context.job.settings.clip)
    return loss


def weigh_gradient(logits: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    """The same logits, whose gradient will be multiplied by the weight of each sample's class.

    For a loss that is a sum over samples this is the gradient of the weighted sum; the loss that is shown has no
    weights.
    """
    if weights is None:
        return logits
    each = weights.to(logits.device)[labels][:, None]
    weighed = logits.view_as(logits)  # penalties look at the logits as well: their gradient stays as it is
    if weighed.requires_grad:
        weighed.register_hook(lambda gradient: gradient * each)  # type: ignore[no-untyped-call]
    return weighed


def set_training_mode(job: Job, context: ClientContext) -> None:
    """Training mode; with a single sample BatchNorm keeps the server's statistics, because one has none of its own."""
    context.model.train()
    if job.batch_norm and len(context.rows) == 1:
        for module in context.model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()


def keep_optimizer(context: ClientContext) -> None:
    """Put the optimiser's state (momentum and the like) into the client's memory."""
    for index, state in context.optimizer.state_dict()["state"].items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                context.memory.values_by_name[f"optimizer/{index}/{key}"] = value.detach().cpu().clone()


def restore_optimizer(context: ClientContext) -> None:
    """Take the optimiser's state back out of the client's memory."""
    kept: dict[int, dict[str, Tensor]] = {}
    for name, value in context.memory.items():
        if name.startswith("optimizer/"):
            _, index, key = name.split("/")
            kept.setdefault(int(index), {})[key] = value
    if kept:
        groups = context.optimizer.state_dict()["param_groups"]
        context.optimizer.load_state_dict({"state": kept, "param_groups": groups})
