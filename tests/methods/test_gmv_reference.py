"""Global memory vectors against plain loops in float64: rounds without and with memory, few clients in each."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedframe.core.job import Job
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.methods.parts.features import Normalise
from fedframe.methods.parts.frame_head import SimplexETF
from fedframe.methods.parts.gmv import GlobalMemory
from tests.helpers import blobs, nothing
from tests.methods.plain import average, batches, plain_model, same
from tests.methods.toy import job_of

ROUNDS, WARM, FIRST = 6, 0.5, 3  # half of six rounds: memory is first used in the third
ALPHA, CLASSES, DIM = 0.7, 3, 8
RARE, ITS_OWNER = 2, 1
SEED = 38  # of one that chooses clients as the tests below say


def job_with_memory(folder: Path, means: Any, participation: float, seed: int, divisor: Any = "holders") -> Job:
    """Four clients: all have class 0, two have class 1, one has class 2."""
    data = blobs(clients=4, each=24)
    y, number = data["y_train"], np.arange(96)
    data["user_train"] = np.select([y == RARE, y == 1], [ITS_OWNER, 3 * (number % 3 == 0)], number % 4)
    part = GlobalMemory(alpha=ALPHA, warm=WARM, means=means, divisor=divisor)
    settings = {"rounds": ROUNDS, "participation": participation, "epochs": 2, "seed": seed, "min_client_size": 1}
    return job_of(folder, SimplexETF(scale=3.0), Normalise(), part, data=data, **settings)


def on_the_sphere(model: nn.Sequential, x: Tensor) -> Tensor:
    h = model[0](x)
    return torch.stack([row / row.square().sum().sqrt().clamp_min(1e-12) for row in h])


def class_means(features: Tensor, labels: Tensor) -> dict[int, Tensor]:
    """f_c of the classes that are there."""
    return {
        c: torch.stack([f for f, label in zip(features, labels.tolist(), strict=True) if label == c]).mean(0)
        for c in sorted(set(labels.tolist()))
    }


def local_training(
    job: Job, round: int, client: int, shared: nn.Sequential, memory: dict[int, Tensor], means: str
) -> tuple[nn.Sequential, dict[int, Tensor]]:
    """Algorithm 1 on a client: h = f + alpha mu_y, and f_c of the last epoch or of the final model."""
    model = copy.deepcopy(shared)
    weights = list(model[0].parameters())
    found = batches(job, round, client)
    last: list[tuple[Tensor, Tensor]] = []
    for number, (x, y) in enumerate(found):
        f = on_the_sphere(model, x)
        if number >= len(found) // 2:
            last.append((f.detach(), y))
        h = [f[i] + ALPHA * memory[c] if c in memory else f[i] for i, c in enumerate(y.tolist())]
        loss = F.cross_entropy(model[1](torch.stack(h)), y)
        for p, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            p.data.sub_(job.settings.lr * gradient)
    if means == "final":
        rows, source = job.federation.train[client], job.federation.source
        last = [(on_the_sphere(model, source.batch(source.train, rows).double()).detach(), source.train.y[rows])]
    return model, class_means(torch.cat([f for f, _ in last]), torch.cat([y for _, y in last]))


def algorithm_1(
    job: Job, chosen: list[list[int]], means: str, divisor: str
) -> Iterator[tuple[nn.Sequential, dict[int, Tensor]]]:
    """The shared model and the memory of every class that somebody has held, after every round."""
    shared, memory = plain_model(job), dict[int, Tensor]()
    for round, clients in enumerate(chosen, start=1):
        used = memory if round >= FIRST else {}
        done = [local_training(job, round, client, shared, used, means) for client in clients]
        average([model for model, _ in done], [float(len(job.federation.train[k])) for k in clients], shared)
        for c in range(CLASSES):
            held = [f[c] for _, f in done if c in f]
            if held:
                count = len(held) if divisor == "holders" else len(clients)  # |S| as printed
                memory = {**memory, c: torch.stack(held).sum(0) / count}
        yield shared, memory


@pytest.mark.slow
@pytest.mark.parametrize(("means", "divisor"), [("training", "holders"), ("final", "holders"), ("training", "sampled")])
def test_rounds_without_and_with_memory_equal_algorithm_1_in_plain_loops(
    tmp_path: Path, means: str, divisor: str
) -> None:
    job = job_with_memory(tmp_path, means, participation=0.5, seed=SEED, divisor=divisor)
    server = Server(job, InlineEngine(job), nothing)
    chosen = [server.select_clients(round) for round in range(1, 6)]
    # The rare class has its memory from the first round, and needs it after the warm-up.
    assert [ITS_OWNER in clients for clients in chosen[:FIRST]] == [True, False, True]
    for round, (shared, memory) in enumerate(algorithm_1(job, chosen, means, divisor), start=1):
        server.run_round(round, nothing)
        server.round = round
        same(job, server, shared)
        expected = torch.zeros(CLASSES, DIM, dtype=torch.float64)
        for c, vector in memory.items():
            expected[c] = vector
        torch.testing.assert_close(server.state["gmv/memory"].double(), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("means", ["training", "final"])
def test_every_class_that_was_seen_has_a_memory_when_it_is_first_used(tmp_path: Path, means: str) -> None:
    """One client a round: the only one with a rare class comes in the first, and not in the one before the warm-up."""
    job = job_with_memory(tmp_path, means, participation=0.25, seed=SEED)
    server = Server(job, InlineEngine(job), nothing)
    assert server.select_clients(1) == [ITS_OWNER]
    assert server.select_clients(2) != [ITS_OWNER]
    seen: set[int] = set()
    for round in range(1, FIRST):
        server.run_round(round, nothing)
        server.round = round
        seen |= {*job.federation.source.train.y[job.federation.train[server.select_clients(round)[0]]].tolist()}
    received = server.build_request("train", FIRST).tensors["gmv/memory"]
    assert {c for c in range(CLASSES) if received[c].any()} == seen
    assert RARE in seen
