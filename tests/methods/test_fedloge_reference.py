"""FedLoGe's rounds against Algorithm 1 in float64: three steps on every batch, one after the other."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedframe.methods.parts.fedloge import AuxiliaryHeads
from fedframe.methods.parts.frame_head import SimplexETF
from tests.methods.plain import batches
from tests.methods.toy import job_of, trained

PSI, PHI = "extras.auxiliary.psi", "extras.auxiliary.phi"


def descend(weights: Sequence[Tensor], velocity: Sequence[Tensor], loss: Tensor, lr: float, momentum: float) -> None:
    """One step of SGD on a loss of its own."""
    for w, v, gradient in zip(weights, velocity, torch.autograd.grad(loss, weights), strict=True):
        v.mul_(momentum).add_(gradient)
        w.data.sub_(lr * v)


@pytest.mark.parametrize("steps", [1, None])
def test_rounds_equal_algorithm_1_in_plain_loops(tmp_path: Path, steps: int | None) -> None:
    """theta by the frozen classifier, then psi and phi_k on the same features (lines 4 to 6); phi_k never leaves."""
    lr, momentum, rounds = 0.2, 0.5, 3
    job = job_of(
        tmp_path, SimplexETF(), AuxiliaryHeads(), epochs=2, batch=6, lr=lr, momentum=momentum, steps=steps, rounds=3
    )
    server = trained(job, rounds)
    start = {name: tensor.double() for name, tensor in job.template.state_dict().items()}
    count = len(job.federation)
    sizes = [len(job.federation.train[client]) for client in range(count)]
    assert len(set(sizes)) > 1
    theta = [p.detach().double() for p in job.template.backbone.parameters()]
    psi = start[PSI]
    phi = [start[PHI].clone() for _ in range(count)]
    for round in range(1, rounds + 1):
        thetas, psis = [], []
        for client in range(count):
            backbone = copy.deepcopy(job.template.backbone).double()
            body = list(backbone.parameters())
            for p, value in zip(body, theta, strict=True):
                p.data.copy_(value)
            shared, own = psi.clone().requires_grad_(), phi[client].clone().requires_grad_()
            velocity = [torch.zeros_like(p) for p in (*body, shared, own)]
            for x, y in batches(job, round, client)[:steps]:
                h = backbone(x)
                fixed = h.detach().clone()
                descend(body, velocity[:-2], F.cross_entropy(h @ start["head.weight"].T, y), lr, momentum)
                descend([shared], velocity[-2:-1], F.cross_entropy(fixed @ shared.T, y), lr, momentum)
                descend([own], velocity[-1:], F.cross_entropy(fixed @ own.T, y), lr, momentum)
            thetas.append([p.detach() for p in body])
            psis.append(shared.detach())
            phi[client] = own.detach()
        shares = [size / sum(sizes) for size in sizes]
        theta = [sum((s * t[i] for s, t in zip(shares, thetas, strict=True)), 0 * theta[i]) for i in range(len(theta))]
        psi = sum((s * p for s, p in zip(shares, psis, strict=True)), 0 * psi)
    for (name, _), value in zip(job.template.backbone.named_parameters(), theta, strict=True):
        torch.testing.assert_close(server.tensor(f"backbone.{name}").double(), value, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(server.tensor(PSI).double(), psi, atol=1e-5, rtol=1e-4)
    for client in range(count):
        kept = job.store.load(client, before=rounds + 1)[f"model/{PHI}"]
        torch.testing.assert_close(kept.double(), phi[client], atol=1e-5, rtol=1e-4)
    assert torch.equal(server.tensor("head.weight"), job.template.state_dict()["head.weight"])


def test_phi_is_in_no_message_to_or_from_the_server(tmp_path: Path) -> None:
    job = job_of(tmp_path, SimplexETF(), AuxiliaryHeads())
    server = trained(job, 1)
    order = server.build_request("train", 2)
    reply = server.engine.runtime.perform(order, 0)  # type: ignore[attr-defined]
    phi = job.store.load(0, before=3)[f"model/{PHI}"]
    assert {*order.tensors} == {"model"}
    assert {*reply.tensors} == {"update"}
    assert PHI not in job.roles.layout.views(order.tensors["model"])
    numbers = sum(entry.shape.numel() for entry in job.roles.layout.entries)
    assert numbers == sum(
        t.numel() for name, t in job.template.state_dict().items() if "backbone" in name or name == PSI
    )
    assert not torch.equal(phi, job.template.state_dict()[PHI])
