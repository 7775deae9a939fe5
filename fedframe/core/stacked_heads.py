"""Training what follows the backbone for many clients at once, on features that are computed once.

A personal stage that leaves the backbone alone (a classifier, FedETF's projection) takes thousands of tiny steps, and
nearly all of their time goes into starting operations, not into arithmetic. Here the weights of a group of clients are
stacked, and one step of the stack is one step of every client, on its own batch of its own data. Every client takes
the very steps that it would take alone; a test holds the two together.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedframe.core.batches import batch_ends
from fedframe.core.hook_errors import checked_losses
from fedframe.core.model import Model
from fedframe.core.optimizers import FusedSGD, without_momentum_and_decay
from fedframe.core.part import HeadStage, stacks

if TYPE_CHECKING:
    from fedframe.core.client_context import ClientContext
    from fedframe.core.job import Job


@dataclass
class StackedClient:
    """One client of the group: its work, its features with their labels, and its tensors behind the backbone."""

    context: ClientContext
    features: Tensor  # as they leave the backbone, in evaluation mode, without augmentation
    labels: Tensor
    tensors: dict[str, Tensor]


def stackable(model: Model) -> list[str]:
    """Names of the tensors behind the backbone that a stack knows to handle: linear layers and single numbers."""
    found = []
    for path, module in model.named_modules():
        if path.startswith(("extras", "head")):
            known = isinstance(module, nn.Linear)
            tensors = module.named_parameters(recurse=False)
            found += [f"{path}.{name}" for name, tensor in tensors if known or tensor.ndim == 0]
    return found


def can_stack(job: Job, stages: Sequence[HeadStage]) -> bool:
    """Whether these stages mean the same for a stack of clients: plain SGD, and nothing looks across samples."""
    method, settings = job.method, job.settings
    losses = [stage.loss or method.slot("loss") for stage in stages]
    samplewise = all(part.samplewise for part in method.parts_with("transform"))
    names = [name for name, _ in job.template.named_parameters() if not name.startswith("backbone.")]
    trained = {name for stage in stages for name in names if name.startswith(stage.only)}
    plain = settings.optimizer == "sgd" and settings.clip is None
    return (
        plain and trained <= set(stackable(job.template)) and samplewise and all(stacks(type(loss)) for loss in losses)
    )


# -- the stack ---------------------------------------------------------------------------------------------------------
class StackedLinear(nn.Module):
    """A linear layer per client; its tensors are set from outside."""

    weight: Tensor  # (clients, out, in)
    bias: Tensor | None = None  # (clients, out)

    def forward(self, features: Tensor) -> Tensor:
        """(clients, samples, in) to (clients, samples, out)."""
        if self.bias is None:
            return torch.bmm(features, self.weight.mT)
        return torch.baddbmm(self.bias[:, None], features, self.weight.mT)


def batched_copy(module: nn.Module, linear: type[StackedLinear] = StackedLinear) -> nn.Module:
    """The module with a layer per client for every linear layer."""
    if isinstance(module, nn.Linear):
        return linear()
    double = copy.deepcopy(module)
    for name, child in module.named_children():
        double.add_module(name, batched_copy(child, linear))
    for name in [name for name, tensor in module.named_parameters(recurse=False) if tensor.ndim == 0]:
        delattr(double, name)  # to be set as a plain tensor: one number per client
    return double


class Stack:
    """What follows the backbone, for a group of clients."""

    def __init__(self, model: Model, clients: Sequence[Mapping[str, Tensor]]) -> None:
        self.model = Model(nn.Identity(), model.dim, model.classes)
        self.model.extras = nn.ModuleDict({name: batched_copy(module) for name, module in model.extras.items()})
        self.model.head = batched_copy(model.head)
        self.tensors = {name: torch.stack([own[name] for own in clients]) for name in stackable(model)}
        for name, tensor in self.tensors.items():
            if tensor.ndim == 1:
                self.tensors[name] = tensor[:, None, None]  # to multiply (clients, samples, features)

    def first(self, count: int, trained: Sequence[str]) -> list[nn.Parameter]:
        """Put the first `count` clients' tensors into the model; the trained ones as leaves on the same memory."""
        leaves = []
        for name, tensor in self.tensors.items():
            value: Tensor = tensor[:count]
            if name in trained:
                value = nn.Parameter(value)
                leaves.append(value)
            path, _, attribute = name.rpartition(".")
            # Not as a registered parameter: torch would refuse to put a plain tensor there the next time.
            object.__setattr__(self.model.get_submodule(path), attribute, value)
        return leaves

    def client(self, number: int, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One client's tensors."""
        return {name: tensor[number].reshape(like[name].shape) for name, tensor in self.tensors.items()}


# -- training ----------------------------------------------------------------------------------------------------------
def fit_heads(job: Job, clients: Sequence[StackedClient], stages: Sequence[HeadStage]) -> None:
    """Train the tensors of all clients through all stages."""
    plan = BatchPlan(job, [client for client in clients if len(client.labels)])
    if not plan.clients:
        return
    stack = Stack(job.template, [client.tensors for client in plan.clients])
    for stage in stages:
        fit_stage(job, stack, plan, stage)
    for number, client in enumerate(plan.clients):
        client.tensors |= stack.client(number, client.tensors)


class BatchPlan:
    """Which samples each client takes in which step.

    Clients with more steps come first, so that those that still have a batch are always the first few of the stack.
    """

    def __init__(self, job: Job, clients: Sequence[StackedClient]) -> None:
        size, lonely_last = job.settings.batch, not job.batch_norm
        ends = {id(client): batch_ends(len(client.labels), size, lonely_last) for client in clients}
        self.clients = sorted(clients, key=lambda client: -len(ends[id(client)]))
        self.contexts = [client.context for client in self.clients]
        if not clients:
            return
        self.features = torch.cat([client.features for client in self.clients])
        self.labels = torch.cat([client.labels for client in self.clients])
        steps = [len(ends[id(client)]) for client in self.clients]
        self.active = [sum(count > step for count in steps) for step in range(steps[0])]
        shape = (len(self.clients), steps[0], max(max(pieces(each)) for each in ends.values()))
        self.slots = torch.zeros(shape, dtype=torch.int64)  # places in the order of an epoch; the rest is padding
        self.weights = torch.zeros(shape)  # 1 / batch for a sample, 0 for padding
        start = 0
        for number, client in enumerate(self.clients):
            for step, count in enumerate(pieces(ends[id(client)])):
                self.slots[number, step, :count] = torch.arange(start, start + count)
                self.weights[number, step, :count] = 1 / count
                start += count
        self.weights = self.weights.to(self.features.device)

    def epoch(self) -> Tensor:
        """Rows of the features for every client, step and place, in each client's own random order."""
        orders, start = [], 0
        for client in self.clients:
            count = len(client.labels)
            orders.append(start + torch.randperm(count, generator=client.context.generator))
            start += count
        return torch.cat(orders)[self.slots].to(self.features.device)


def pieces(ends: Sequence[int]) -> list[int]:
    """Sizes of the batches that end there."""
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def fit_stage(job: Job, stack: Stack, plan: BatchPlan, stage: HeadStage) -> None:
    """Some epochs for all clients of the stack."""
    settings = without_momentum_and_decay(job.settings) if stage.plain_steps else job.settings
    loss, transforms = stage.loss or job.method.slot("loss"), job.method.parts_with("transform")
    trained = [name for name in stack.tensors if name.startswith(stage.only)]
    lr = stage.lr or plan.contexts[0].lr
    optimizers: dict[int, FusedSGD] = {}
    for epoch in range(stage.epochs):
        rows = plan.epoch()
        for step, active in enumerate(plan.active):
            leaves = stack.first(active, trained)
            if active not in optimizers:
                optimizers[active] = FusedSGD(leaves, lr, settings.momentum, settings.nesterov, settings.weight_decay)
                everyone = optimizers[len(plan.clients)]  # all clients take part in the first step
                optimizers[active].velocity = {i: v[:active] for i, v in everyone.velocity.items()}
            optimizer = optimizers[active]
            optimizer.parameters = leaves
            chosen = rows[:active, step]
            features = plan.features[chosen]
            for part in transforms:
                features = part.transform(stack.model, features, plan.contexts[0])
            logits, labels = stack.model.head(features), plan.labels[chosen]
            losses = loss.row_losses(logits, labels, plan.contexts[:active])
            if (epoch, step) == (0, 0):
                counts = (plan.weights[:active, step] > 0).sum(1).tolist()
                checked_losses(losses, loss, "row_losses", logits, labels, counts, plan.contexts[:active])
            if job.class_weights is not None:
                losses = losses * job.class_weights.to(losses.device)[labels]
            optimizer.zero_grad()
            (losses * plan.weights[:active, step]).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
