"""FedETF's personal stage against a plain loop in float64, in a method whose rounds have another loss."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedframe.core.job import Job, personal_path
from fedframe.core.server import Server
from fedframe.core.stacked_heads import can_stack
from fedframe.methods.parts.features import Normalise, Projection, Temperature
from fedframe.methods.parts.fedetf_stage import AlternatingAdaptation
from fedframe.methods.parts.frame_head import SimplexETF
from fedframe.methods.parts.losses import BalancedCrossEntropy
from fedframe.util.files import read_tensors
from tests.helpers import blobs
from tests.methods.plain import batches
from tests.methods.toy import job_of, trained

CLIENT, LR, HEAD_LR, PROJECTION_LR = 1, 0.05, 0.3, 0.2
U, P = ("backbone.layers.0.weight", "backbone.layers.0.bias"), ("extras.projection.weight", "extras.projection.bias")
V, BETA = ("head.weight",), ("extras.temperature.beta",)


def fedetf(folder: Path, iterations: int, clip: float | None = None, plain_head: bool = True) -> tuple[Job, Server]:
    """All of FedETF after a round; client 1 has one sample of class 2, a few of class 1 and many of class 0."""
    data = blobs(clients=3, each=24)
    data["y_train"][24:48] = [0] * 18 + [1] * 5 + [2]
    stage = AlternatingAdaptation(2, iterations, 2, HEAD_LR, PROJECTION_LR, plain_head)
    parts = (SimplexETF(), Projection(dim=4), Normalise(), Temperature(beta=4.0), BalancedCrossEntropy(), stage)
    job = job_of(folder, *parts, data=data, lr=LR, momentum=0.5, weight_decay=0.01, clip=clip)
    return job, trained(job, 1)


def personal_model(job: Job, server: Server) -> dict[str, Tensor]:
    """What the client keeps as its own, with the shared model's tensors where it differs in nothing."""
    server.engine.runtime.perform(server.build_request("personalise", 2), CLIENT)  # type: ignore[attr-defined]
    own, _ = read_tensors(personal_path(job.folder, CLIENT))
    return {name: own.get(name, server.tensor(name)) for name in job.template.state_dict()}


def reference(job: Job, server: Server, iterations: int, plain_head: bool) -> dict[str, Tensor]:
    """(1) u and beta; (2) in every iteration V and beta, then p and beta; plain cross-entropy, two epochs each.

    The run has momentum 0.5 and weight decay 0.01, which the steps of V do without if they are plain.
    """
    weights = {name: server.tensor(name).double() for name in job.template.state_dict()}
    stages = [((*U, *BETA), LR)] + [((*V, *BETA), HEAD_LR), ((*P, *BETA), PROJECTION_LR)] * iterations
    everything = batches(job, 2, CLIENT, "personalise", epochs=2 * len(stages))
    count = len(everything) // len(stages)
    for number, (names, lr) in enumerate(stages):
        momentum, decay = (0.0, 0.0) if plain_head and V[0] in names else (0.5, 0.01)
        velocity = {name: torch.zeros_like(weights[name]) for name in names}
        for x, y in everything[number * count : (number + 1) * count]:
            learning = {name: weights[name].detach().requires_grad_() for name in names}
            now = {**weights, **learning}
            loss = torch.zeros((), dtype=torch.float64)
            for sample, label in zip(x, y.tolist(), strict=True):
                h = (now["backbone.layers.0.weight"] @ sample + now["backbone.layers.0.bias"]).relu()
                g = now["extras.projection.weight"] @ h + now["extras.projection.bias"]
                logits = now["extras.temperature.beta"] * (now["head.weight"] @ (g / g.square().sum().sqrt()))
                loss = loss + (logits.exp().sum().log() - logits[label]) / len(y)
            gradients = torch.autograd.grad(loss, list(learning.values()))
            for name, gradient in zip(names, gradients, strict=True):
                velocity[name] = momentum * velocity[name] + gradient + decay * weights[name]
                weights[name] = weights[name] - lr * velocity[name]
    return weights


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize(("iterations", "plain_head"), [(0, True), (1, True), (3, True), (3, False)])
def test_personal_model_equals_a_plain_loop_with_plain_cross_entropy(
    tmp_path: Path, iterations: int, plain_head: bool, stacked: bool
) -> None:
    clip = None if stacked else 1e9  # a bound that is never reached, but keeps clients out of the stack
    job, server = fedetf(tmp_path, iterations, clip, plain_head)
    assert can_stack(job, job.method.slot("client_stage").head_stages(job.method, job.template)) == stacked
    found = personal_model(job, server)
    for name, value in reference(job, server, iterations, plain_head).items():
        torch.testing.assert_close(found[name].double(), value, atol=2e-5, rtol=2e-4)


def test_first_stage_leaves_projection_and_classifier_as_they_are_and_moves_the_rest(tmp_path: Path) -> None:
    job, server = fedetf(tmp_path, iterations=0)
    found = personal_model(job, server)
    assert {name for name in found if torch.equal(found[name], server.tensor(name))} == {*V, *P}
