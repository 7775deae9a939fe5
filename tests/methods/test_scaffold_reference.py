"""SCAFFOLD's control variates as what they stand for: means of the raw gradients that a client has seen."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.methods.parts.scaffold import Scaffold
from tests.helpers import nothing
from tests.methods.plain import average, batches, plain_model, same
from tests.methods.toy import job_of

M = 0.8


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize(
    ("momentum", "nesterov", "first", "second"),
    [
        (0.0, False, 1, 1),
        (M, False, 1 + M, 1),  # the first gradient moves the weights in both steps, fading
        (M, True, (1 + M) + M * M, 1 + M),  # each of the two steps looks one step of momentum ahead
    ],
)
def test_variate_after_two_steps_is_the_mean_of_the_raw_gradients_as_they_enter_the_update(
    tmp_path: Path, momentum: float, nesterov: bool, first: float, second: float, weighting: str
) -> None:
    """c_k+ = (first g_1 + second g_2) / (first + second) in every round: what is added to gradients cancels."""
    lr, rounds = 0.1, 3
    settings = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "steps": 2, "batch": 6, "weighting": weighting}
    job = job_of(tmp_path, Scaffold(), **settings)
    server = Server(job, InlineEngine(job), nothing)
    shared, count = plain_model(job), len(job.federation)
    names = [f"backbone.{n[2:]}" if n[0] == "0" else f"head.{n[2:]}" for n, _ in shared.named_parameters()]
    c = [torch.zeros_like(p) for p in shared.parameters()]
    own = [c] * count
    for round in range(1, rounds + 1):
        locals_: list[nn.Sequential] = []
        new: list[list[Tensor]] = []
        for client in range(count):
            model = copy.deepcopy(shared)
            start = [p.detach() for p in shared.parameters()]
            raw: list[list[Tensor]] = []
            for x, y in batches(job, round, client)[:2]:
                raw.append(list(torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))))
                corrected = [[g - k + s for g, k, s in zip(gs, own[client], c, strict=True)] for gs in raw]
                with torch.no_grad():
                    for i, p in enumerate(model.parameters()):
                        if len(raw) == 1:
                            way = (1 + momentum if nesterov else 1) * corrected[0][i]
                        else:
                            way = first * corrected[0][i] + second * corrected[1][i]
                        p.copy_(start[i] - lr * way)
            new.append([(first * a + second * b) / (first + second) for a, b in zip(*raw, strict=True)])
            locals_.append(model)
        weights = [float(len(job.federation.train[k])) if weighting == "samples" else 1.0 for k in range(count)]
        for client, weight in enumerate(weights):
            moved = [n - o for n, o in zip(new[client], own[client], strict=True)]
            c = [old + weight / sum(weights) * m for old, m in zip(c, moved, strict=True)]
        own = new
        average(locals_, weights, shared)
        server.run_round(round, nothing)
        server.round = round
        for client in range(count):
            kept = job.roles.layout.trainable_views(job.store.load(client, before=round + 1)["scaffold/c"])
            for name, value in zip(names, own[client], strict=True):
                torch.testing.assert_close(kept[name].double(), value, atol=2e-5, rtol=1e-4)
    same(job, server, shared)
    held = job.roles.layout.trainable_views(server.state["scaffold/c"])
    for name, value in zip(names, c, strict=True):
        torch.testing.assert_close(held[name].double(), value, atol=2e-5, rtol=1e-4)
