"""Plain loops in float64, which parts are held against."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fedframe.core.job import Job
from fedframe.core.server import Server
from fedframe.util.seeds import generator_for


def batches(
    job: Job, round: int, client: int, kind: str = "train", epochs: int | None = None
) -> list[tuple[Tensor, Tensor]]:
    """The batches of a client's round (or of another order), in float64."""
    source, rows = job.federation.source, job.federation.train[client]
    generator = generator_for(job.settings.seed, "batches", kind, round, client)
    found = []
    for _ in range(job.settings.epochs if epochs is None else epochs):
        order = rows[torch.randperm(len(rows), generator=generator)]
        for start in range(0, len(order), job.settings.batch):
            some = order[start : start + job.settings.batch]
            found.append((source.batch(source.train, some).double(), source.train.y[some]))
    return found


def plain_model(job: Job) -> nn.Sequential:
    """Backbone and classifier of the initial model."""
    return nn.Sequential(copy.deepcopy(job.template.backbone), copy.deepcopy(job.template.head)).double()


def same(job: Job, server: Server, reference: nn.Sequential) -> None:
    """Whether the server has the plain model's weights."""
    for name, value in reference.state_dict().items():
        full = ("backbone." if name.startswith("0.") else "head.") + name[2:]
        torch.testing.assert_close(server.tensor(full).double(), value, atol=3e-5, rtol=1e-4)


def average(models: list[nn.Sequential], weights: list[float], target: nn.Sequential) -> None:
    """Set a plain model to the weighted mean of others."""
    states = [model.state_dict() for model in models]
    total = sum(weights)
    mean = {
        name: sum((w * s[name] for w, s in zip(weights, states, strict=True)), torch.zeros((), dtype=torch.float64))
        / total
        for name in states[0]
    }
    target.load_state_dict(mean)
