"""Making clients' own models after the last round, one client or a group of clients at a time.

Clients form groups when the method's client stage ends with training that leaves the backbone alone: that is done for a
whole group at once (`heads.py`). Groups depend on the job alone, never on how many processes share the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedframe.core.hook_errors import call_in_place, wrong_return
from fedframe.core.layout import named_tensors
from fedframe.core.message import Message, all_finite
from fedframe.core.model import load_tensors
from fedframe.core.part import HeadStage
from fedframe.core.stacked_heads import StackedClient, can_stack, fit_heads

if TYPE_CHECKING:
    from fedframe.core.client_context import ClientContext
    from fedframe.core.client_runtime import ClientRuntime
    from fedframe.core.job import Job

MOST_TOGETHER = 64  # beyond that, larger matrices save nothing more
FEWEST_GROUPS = 4  # so that several processes have something to do
MOST_BYTES = 256 << 20  # of the models that a group keeps at hand


def groups(job: Job, clients: Sequence[int]) -> list[Sequence[int]]:
    """Clients that make their models together; neighbours in this order."""
    stages = head_stages(job)
    size = 1
    if stages and can_stack(job, stages):
        room = MOST_BYTES // sum(tensor.nbytes for tensor in named_tensors(job.template).values())
        size = max(1, min(MOST_TOGETHER, -(-len(clients) // FEWEST_GROUPS), room))
    return [clients[start : start + size] for start in range(0, len(clients), size)]


def head_stages(job: Job) -> Sequence[HeadStage]:
    """The stages in which the backbone stays as it is, as the method's part gives them."""
    stage = job.method.slot("client_stage")
    stages = stage.head_stages(job.method, job.template)
    if not isinstance(stages, Sequence) or not all(isinstance(each, HeadStage) for each in stages):
        raise wrong_return(stage, "head_stages", stages, "a list of HeadStage")
    return stages


def make_personal_models(runtime: ClientRuntime, request: Message, clients: Sequence[int]) -> list[dict[str, Tensor]]:
    """Make each client's own model and keep it in the run folder; how each does on the client's own test data."""
    job, stage = runtime.job, runtime.job.method.slot("client_stage")
    request = replace(request, kind="personalise")  # a client's random streams do not depend on its group
    stages = head_stages(job)
    stacked = bool(stages) and can_stack(job, stages)
    group: list[StackedClient] = []
    for client in clients:
        context = begin_personal(runtime, request, client)
        call_in_place(stage, "personalise", context)
        if not stacked:
            for each in stages:
                fit_alone(context, each)
        group.append(set_aside(runtime, context, stacked))
    if stacked:
        fit_heads(job, group, stages)
    hits = []
    for member in group:
        context = member.context
        load_tensors(runtime.model, member.tensors)
        for each in stages:
            if each.after is not None:
                each.after(context)
        own = job.own_tensors(runtime.model, context.received)
        diverged = not all(all_finite(tensor) for tensor in own.values() if tensor.is_floating_point())
        if diverged:  # the model that the stage began with is the best there is for this client
            begin_personal(runtime, request, context.client)
            own = job.own_tensors(runtime.model, context.received)
        if job.settings.save_personal:
            job.keep_personal(context.client, own)
        found = runtime.predict_local(context.client)
        hits.append(
            {
                **runtime.count_hits(context.client, found),
                "diverged": torch.tensor(diverged),
                **runtime.outputs(found),
            }
        )
    return hits


def begin_personal(runtime: ClientRuntime, request: Message, client: int) -> ClientContext:
    """The client's model as rounds have left it, from which the client stage starts."""
    context = runtime.begin(request, client)
    runtime.catch_up(context)
    runtime.load_personal(context)
    return context


def fit_alone(context: ClientContext, stage: HeadStage) -> None:
    """A head stage for one client, with the one loop over batches."""
    lr = context.lr
    context.lr, context.plain_steps = stage.lr or lr, stage.plain_steps
    context.fit(stage.epochs, only=lambda name: name.startswith(stage.only), loss=stage.loss)
    context.lr, context.plain_steps = lr, False


@torch.no_grad()
def set_aside(runtime: ClientRuntime, context: ClientContext, stacked: bool) -> StackedClient:
    """The client's model as it stands, and what is needed to go on with it later."""
    tensors = {name: tensor.detach().clone() for name, tensor in named_tensors(runtime.model).items()}
    rows = context.rows if stacked else context.rows[:0]
    labels = runtime.job.federation.source.train.targets[rows].to(runtime.flat.device)
    return StackedClient(context, runtime.features(rows), labels, tensors)
