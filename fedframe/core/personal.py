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
    stages = job.method.slot("client_stage").head_stages(job.method, job.template)
    size = 1
    if stages and can_stack(job, stages):
        room = MOST_BYTES // sum(tensor.nbytes for tensor in named_tensors(job.template).values())
        size = max(1, min(MOST_TOGETHER, -(-len(clients) // FEWEST_GROUPS), room))
    return [clients[start : start + size] for start in range(0, len(clients), size)]


def make_personal_models(site: ClientRuntime, request: Message, clients: Sequence[int]) -> list[dict[str, Tensor]]:
    """Make each client's own model and keep it in the run folder; how each does on the client's own test data."""
    job, stage = site.job, site.job.method.slot("client_stage")
    request = replace(request, kind="personalise")  # whoever is in a group with a client, its own dice stay the same
    stages = stage.head_stages(job.method, job.template)
    stacked = bool(stages) and can_stack(job, stages)
    pupils: list[StackedClient] = []
    for client in clients:
        context = begin_personal(site, request, client)
        stage.personalise(context)
        if not stacked:
            for each in stages:
                fit_alone(context, each)
        pupils.append(keep_aside(site, context, stacked))
    if stacked:
        fit_heads(job, pupils, stages)
    hits = []
    for pupil in pupils:
        load_tensors(site.model, pupil.tensors)
        for each in stages:
            if each.after is not None:
                each.after(pupil.context)
        own = job.own_tensors(site.model, pupil.context.received)
        diverged = not all(all_finite(tensor) for tensor in own.values() if tensor.is_floating_point())
        if diverged:  # the model that the stage began with is the best there is for this client
            begin_personal(site, request, pupil.context.client)
            own = job.own_tensors(site.model, pupil.context.received)
        if job.settings.save_personal:
            job.keep_personal(pupil.context.client, own)
        hits.append({**site.count_hits(pupil.context.client), "diverged": torch.tensor(diverged)})
    return hits


def begin_personal(site: ClientRuntime, request: Message, client: int) -> ClientContext:
    """The client's model as rounds have left it, from which the client stage starts."""
    context = site.begin(request, client)
    site.catch_up(context)
    site.load_personal(context)
    return context


def fit_alone(context: ClientContext, stage: HeadStage) -> None:
    """A head stage for one client, with the one loop over batches."""
    lr = context.lr
    context.lr = stage.lr or lr
    context.fit(stage.epochs, only=lambda name: name.startswith(stage.only), loss=stage.loss)
    context.lr = lr


@torch.no_grad()
def keep_aside(site: ClientRuntime, context: ClientContext, stacked: bool) -> StackedClient:
    """The client's model as it stands, and what is needed to go on with it later."""
    tensors = {name: tensor.detach().clone() for name, tensor in named_tensors(site.model).items()}
    rows = context.rows if stacked else context.rows[:0]
    labels = site.job.federation.source.train.y[rows].to(site.flat.device)
    return StackedClient(context, site.features(rows), labels, tensors)
