"""Plain loops in float64, which parts are held against."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
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


def train_locally(
    job: Job, shared: nn.Sequential, round: int, client: int, adjust: Callable[[nn.Sequential], None] | None = None
) -> nn.Sequential:
    """A client's model after its round of plain SGD; `adjust` may change the gradients before each step."""
    model = copy.deepcopy(shared)
    optimizer = torch.optim.SGD(model.parameters(), lr=job.settings.lr, momentum=job.settings.momentum)
    for x, y in batches(job, round, client):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        if adjust is not None:
            adjust(model)
        optimizer.step()
    return model


def difference(model: nn.Sequential, shared: nn.Sequential) -> Tensor:
    """A client's update as one vector."""
    pairs = zip(model.parameters(), shared.parameters(), strict=True)
    return torch.cat([(new - old).detach().flatten() for new, old in pairs])


def move(shared: nn.Sequential, step: Tensor) -> None:
    """Add a step to a plain model's weights."""
    weights = [weight.detach() for weight in shared.parameters()]
    for weight, change in zip(weights, step.split([weight.numel() for weight in weights]), strict=True):  # type: ignore[no-untyped-call]
        weight += change.view_as(weight)


def client_weight(job: Job, client: int) -> float:
    """A client's weight in the mean."""
    return float(len(job.federation.train[client])) if job.settings.weighting == "samples" else 1.0


Loss = Callable[[nn.Sequential, nn.Sequential, Tensor, Tensor, int], Tensor]  # local and server's model, batch, client


def plain_rounds(job: Job, rounds: int, loss: Loss) -> nn.Sequential:
    """FedAvg by plain SGD steps on a loss of one's own."""
    shared = plain_model(job)
    for round in range(1, rounds + 1):
        locals_ = []
        for client in range(len(job.federation)):
            model = copy.deepcopy(shared)
            learns = [weight for weight in model.parameters() if weight.requires_grad]
            optimizer = torch.optim.SGD(learns, lr=job.settings.lr, momentum=job.settings.momentum)
            for x, y in batches(job, round, client):
                optimizer.zero_grad()
                loss(model, shared, x, y, client).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            locals_.append(model)
        average(locals_, [client_weight(job, client) for client in range(len(job.federation))], shared)
    return shared
