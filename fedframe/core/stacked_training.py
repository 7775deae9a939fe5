"""Training several clients together in a round: one step of the stack is one step of each, on its own batch.

Every client takes the steps that it would take alone, on the same batches in the same order, with the same result up to
rounding. Batches are padded with samples of weight 0, to a length that depends on the client alone. So who else is in
the stack does not matter to what a client computes; and who is in it is decided by the round alone, never by the number
of workers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedframe.core.batches import CHUNK_BYTES, batch_ends
from fedframe.core.hook_errors import checked_losses
from fedframe.core.optimizers import FusedSGD, without_momentum_and_decay
from fedframe.core.part import overrides, stacks
from fedframe.core.stacked_net import StackedNet, layer_chain, stacked_names

if TYPE_CHECKING:
    from fedframe.core.client_context import ClientContext
    from fedframe.core.job import Job

SINGLE_HOOKS = ("penalty", "correct", "begin_epoch", "begin_batch", "step")  # they look at one client's batch
MOST_WEIGHTS = 250_000  # of a net; larger ones spend their time on arithmetic, and a stack of them leaves the cache
MOST_TOGETHER = 16  # clients of one stack
MOST_STACKS = 4  # of a round, before they are filled: more of them would keep more workers busy, and cost more in all
FEWEST_TOGETHER = 4
SHORTEST = 8  # batches of clients with few samples are padded to 8, 16, 32, ... samples


def obstacle(job: Job) -> str:
    """Why clients cannot train together in this run; empty if they can.

    What parts override decides, and what they declare: a hook that is called with a single client's batch needs that
    client's own loop.
    """
    settings, method, model = job.settings, job.method, job.template
    needed = {"device": "cpu", "optimizer": "sgd", "clip": None, "keep_optimizer": False, "precision": "float32"}
    for setting, value in {**needed, "augment": "none"}.items():
        if getattr(settings, setting) != value:
            return f"{setting} is {getattr(settings, setting)!r}, not {value!r}"
    for part in method.parts:
        for hook in SINGLE_HOOKS:
            if overrides(type(part), hook):
                return f"the hook {hook!r} of {part.name!r} takes one client at a time"
        if overrides(type(part), "transform") and not part.same_in_rounds:
            return f"{part.name!r} does not say that 'transform' is the same in rounds (same_in_rounds)"
    loss = method.slot("loss")
    if not stacks(type(loss), "round_losses"):
        return f"the loss {loss.name!r} is not written for several clients (round_losses)"
    if layer_chain(model.backbone) is None:
        return "the net is no chain of linear layers"
    if sum(tensor.numel() for tensor in model.parameters()) > MOST_WEIGHTS:
        return f"the net has more than {MOST_WEIGHTS:,} weights, and would gain nothing"
    names = {*stacked_names(model)}
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    own = {*trained, *job.roles.private} - names
    if own:
        return f"{sorted(own)[0]} is no weight of a linear layer"
    if {*job.roles.fixed} - names and method.parts_with("begin"):
        other, beginner = sorted({*job.roles.fixed} - names)[0], method.parts_with("begin")[0].name
        return f"{beginner!r} may begin with another {other} for every client, which is no weight of a linear layer"
    return ""


def stacks_of(units: Sequence[int]) -> list[list[int]]:
    """The clients of a round, in their order, as groups that train together; their sizes differ by one at most."""
    largest = min(max(-(-len(units) // MOST_STACKS), FEWEST_TOGETHER), MOST_TOGETHER)
    count = -(-len(units) // largest)
    ends = [len(units) * number // count for number in range(count + 1)] if count else []
    return [list(units[start:end]) for start, end in itertools.pairwise(ends)]


# -- training ----------------------------------------------------------------------------------------------------------
@dataclass
class StackMember:
    """One client of a stack: its work, its tensors (which training changes) and its mean loss."""

    context: ClientContext
    tensors: dict[str, Tensor]
    loss: float = 0.0


def train_stack(job: Job, net: StackedNet, members: Sequence[StackMember]) -> None:
    """Train all members; those whose batches or steps are of different kinds train one kind after the other."""
    kinds: dict[tuple[int, float, bool], list[StackMember]] = {}
    for member in members:
        context = member.context
        width = padded(len(context.rows), job.settings.batch)
        kinds.setdefault((width, context.lr, context.plain_steps), []).append(member)
    for (width, _, _), alike in kinds.items():
        train_alike(job, net, alike, width)


def padded(samples: int, batch: int) -> int:
    """The length to which a client's batches are padded: a whole batch, or less if it has fewer samples than that."""
    length = SHORTEST
    while length < samples:
        length *= 2
    return min(length, batch)


class RowPlan:
    """Which samples every member takes in which step; members with more steps come first."""

    def __init__(self, job: Job, members: Sequence[StackMember], width: int) -> None:
        settings = job.settings
        plans = [
            rows_of_steps(each.context, settings.batch, settings.epochs, settings.steps, width) for each in members
        ]
        order = sorted(range(len(members)), key=lambda number: -len(plans[number][1]))
        self.members = [members[number] for number in order]
        self.counts = [plans[number][1] for number in order]
        self.steps = len(self.counts[0])
        shape = (self.steps, len(members))
        self.rows = torch.zeros(*shape, width, dtype=torch.int64)
        self.shares = torch.zeros(*shape, width)  # 1 / batch for a sample, 0 for padding
        sizes = torch.zeros(shape, dtype=torch.int64)
        for place, number in enumerate(order):
            rows, counts = plans[number]
            self.rows[: len(counts), place] = rows
            sizes[: len(counts), place] = torch.tensor(counts, dtype=torch.int64)
        real = torch.arange(width) < sizes[..., None]
        self.shares = real / sizes.clamp_min(1)[..., None].float()
        self.sizes = sizes.float()
        self.active = (sizes > 0).sum(1).tolist()


def rows_of_steps(
    context: ClientContext, size: int, epochs: int, steps: int | None, width: int
) -> tuple[Tensor, list[int]]:
    """The rows of every step (steps, width), padded with the client's first, and how many of them are real.

    They are drawn as the loop over batches draws them.
    """
    ends = batch_ends(len(context.rows), size, lonely_last=True)
    counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    total = steps if steps is not None else epochs * len(ends)
    drawn: list[Tensor] = []
    while len(drawn) * len(ends) < total:
        order = context.rows[torch.randperm(len(context.rows), generator=context.generator)]
        padding = order[:1].expand(len(ends) * width - len(order))
        drawn.append(torch.cat([order, padding]).view(len(ends), width))
    rows = torch.cat(drawn)[:total] if drawn else torch.zeros(0, width, dtype=torch.int64)
    return rows, (counts * len(drawn))[:total]


def train_alike(job: Job, net: StackedNet, members: Sequence[StackMember], width: int) -> None:
    """Train members whose batches have one length."""
    plan, first = RowPlan(job, members, width), members[0].context
    settings = without_momentum_and_decay(job.settings) if first.plain_steps else job.settings
    source, loss = job.federation.source, job.method.slot("loss")
    trained = {name for name, weight in job.template.named_parameters() if weight.requires_grad}
    transforms, contexts = job.method.parts_with("transform"), [member.context for member in plan.members]
    net.load(first.model, [member.tensors for member in plan.members])
    total, active = torch.zeros(len(members)), 0
    velocity: dict[int, Tensor] = {}
    bytes_a_step = 4 * torch.Size(source.input_shape).numel() * len(members) * width
    at_once = max(1, CHUNK_BYTES // max(1, bytes_a_step))
    for start in range(0, plan.steps, at_once):
        rows = plan.rows[start : start + at_once]
        inputs = source.batch(source.train, rows.flatten()).view(*rows.shape, *source.input_shape)
        labels = source.train.targets[rows]
        for step in range(start, start + len(rows)):
            if plan.active[step] != active:
                active = plan.active[step]
                leaves = net.first(active, trained)
                optimizer = FusedSGD(
                    leaves.padded, first.lr, settings.momentum, settings.nesterov, settings.weight_decay
                )
                optimizer.velocity = {i: each[:active] for i, each in velocity.items()}
            features = net.features(inputs[step - start, :active])
            for part in transforms:
                features = part.transform(net.model, features, contexts[0])
            answers = labels[step - start, :active]
            logits = net.model.head(features)
            losses = loss.round_losses(logits, answers, contexts[:active])
            if not net.checked:
                counts = plan.sizes[step, :active].int().tolist()
                checked_losses(losses, loss, "round_losses", logits, answers, counts, contexts[:active])
                net.checked = True
            shares = plan.shares[step, :active]
            weighed = losses if job.class_weights is None else losses * job.class_weights[answers]
            leaves.zero_grad()
            (weighed * shares).sum().backward()  # type: ignore[no-untyped-call]
            leaves.pass_gradients()
            optimizer.step()
            velocity = velocity or optimizer.velocity  # of all members, who take part in the first step
            total[:active] += (losses.detach() * shares).sum(1) * plan.sizes[step, :active]
    for number, member in enumerate(plan.members):
        member.tensors |= net.client(number, member.tensors)
        counts = plan.counts[number]
        member.loss = float(total[number]) / max(sum(counts), 1)
        member.context.steps += len(counts)
        member.context.gradients += len(counts)
