"""FedRANE's relational augmentation as training does it, against plain loops in float64; and its precision."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from fedframe.methods.parts.lra import Messages, RelationalAugmentation, mine_relations, pearson
from tests.methods.plain import average, batches
from tests.methods.toy import job_of, trained

Array = npt.NDArray[np.float64]
SMOOTH = 1e-3  # eps of Phi = (B B' + eps I)^(-1/2)
UNIT = np.finfo(np.float64).eps / 2  # u, the most by which one operation rounds


# -- one batch of training ---------------------------------------------------------------------------------------------
def relations_by_columns(z: Array, weight: float, iterations: int) -> Array:
    """Eq. 2 and 3: every column without its own entry is a ridge problem of its own; then Phi, and again."""
    similarity = np.asarray(np.corrcoef(z))
    count = len(z)
    phi, found = np.eye(count), np.zeros((count, count))
    for iteration in range(iterations):
        if iteration:
            values, vectors = np.linalg.eigh(found @ found.T + SMOOTH * np.eye(count))
            phi = vectors @ np.diag(values**-0.5) @ vectors.T
        for j in range(count):
            others = [i for i in range(count) if i != j]
            left = similarity[:, others]
            matrix = left.T @ left + weight * (phi + phi.T)[np.ix_(others, others)]
            found[others, j] = np.linalg.solve(matrix, left.T @ similarity[:, j])
    return found


def neighbourhood(relations: Array, count: int) -> list[dict[int, float]]:
    """For each sample its strongest neighbours with their strengths."""
    strength = (np.abs(relations) + np.abs(relations).T) / 2
    return [{int(j): float(strength[i, j]) for j in np.argsort(-strength[i])[:count]} for i in range(len(strength))]


def pass_messages(z: Tensor, layer: nn.ModuleDict, neighbours: list[dict[int, float]], own: float) -> Tensor:
    """Eq. 5 and 6, sample by sample."""
    rows = []
    receive, send, value = (layer[name](z) for name in ("receive", "send", "value"))
    for i, near in enumerate(neighbours):
        terms = {j: strength * (receive[i] @ send[j] / math.sqrt(z.shape[1])).exp() for j, strength in near.items()}
        total = torch.stack(list(terms.values())).sum()
        message = torch.stack([term / total * value[j] for j, term in terms.items()]).sum(0)
        rows.append(own * z[i] + (1 - own) * message)
    return torch.stack(rows)


def eq_7(before: Tensor, after: Tensor, temperature: float) -> Tensor:
    """-log of how much a sample's own augmented view stands out among all but the sample itself, mean over samples."""
    views = torch.cat([before, after])
    centred = views - views.mean(1, keepdim=True)
    lengths = centred.square().sum(1).sqrt()
    total, count = torch.zeros((), dtype=torch.float64), len(before)
    for i in range(count):
        near = (centred @ centred[i] / (lengths * lengths[i]) / temperature).exp()  # exp of correlation / tau
        total = total - (near[count + i] / (near.sum() - near[i])).log()
    return total / count


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [
        {"contrast_weight": 0.9, "temperature": 0.4},
        {"contrast_weight": 0.0},
        {"contrast_weight": 0.5, "steps": 2, "iterations": 3, "own_share": 0.0, "neighbours": 4},
    ],
    ids=["contrast", "messages alone", "two steps of messages alone, and contrast"],
)
def test_one_batch_of_training_equals_a_plain_loop(tmp_path: Path, values: dict[str, Any]) -> None:
    """Graph, messages, and cross-entropy + contrast_weight x Eq. 7; then one step of SGD for each client's batch."""
    part = RelationalAugmentation(**{"neighbours": 3, "own_share": 0.6, "relation_weight": 0.3, **values})
    job = job_of(tmp_path, part, model="mlp:12", batch=1000, lr=0.5)
    layers = job.template.extras["lra"]
    assert isinstance(layers, nn.ModuleList)
    generator = torch.Generator().manual_seed(1)
    for p in layers.parameters():  # receivers and senders that matter, and values that are no identity
        p.data.add_(0.5 * torch.randn(p.shape, generator=generator))
    server = trained(job, 1)
    shared = nn.Sequential(
        copy.deepcopy(job.template.backbone),
        copy.deepcopy(job.template.head),
        *(nn.ModuleDict({name: copy.deepcopy(child) for name, child in layer.named_children()}) for layer in layers),
    ).double()
    names = [f"backbone.{name}" for name in job.template.backbone.state_dict()] + ["head.weight", "head.bias"]
    names += [f"extras.lra.{i}.{name}" for i, layer in enumerate(layers) for name in layer.state_dict()]
    locals_, weights = [], []
    for client in range(len(job.federation)):
        model = copy.deepcopy(shared)
        ((x, y),) = batches(job, 1, client)
        z = model[0](x)
        assert bool((z.detach().std(1) > 0).all())
        relations = relations_by_columns(z.detach().numpy(), part.relation_weight, part.iterations)
        augmented = z
        for layer in list(model)[2:]:
            assert isinstance(layer, nn.ModuleDict)
            augmented = pass_messages(augmented, layer, neighbourhood(relations, part.neighbours), part.own_share)
        logits = model[1](augmented)
        loss = (logits.logsumexp(1) - logits[torch.arange(len(y)), y]).mean()
        if part.contrast_weight:
            loss = loss + part.contrast_weight * eq_7(z, augmented, part.temperature)
        parameters = list(model.parameters())
        for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.data.sub_(0.5 * gradient)
        locals_.append(model)
        weights.append(float(len(y)))
    assert min(weights) > part.neighbours + 1
    average(locals_, weights, shared)
    for name, value in zip(names, shared.state_dict().values(), strict=True):
        torch.testing.assert_close(server.tensor(name).double(), value, atol=1e-5, rtol=1e-4, msg=name)


# -- precision ---------------------------------------------------------------------------------------------------------
def features(kind: str, count: int) -> Tensor:
    """Features as neural collapse leaves them, in float32."""
    generator = torch.Generator().manual_seed(count)
    centres = torch.randn(10, 64, generator=generator).relu()
    noise = torch.randn(count, 64, generator=generator)
    if kind == "collapsed, each sample twice":
        return (centres[torch.arange(count) % 10] + 1e-3 * noise)[: count // 2].repeat(2, 1)
    if kind == "each sample four times":
        return noise[: count // 4].relu().repeat(4, 1)
    return centres[:1].repeat(count, 1)


def relations_at_once(z: Array, weight: float, iterations: int) -> tuple[Array, float]:
    """The same minimum for large batches, for all columns at once and held to its own equation; and how many times
    Phi's matrix, B B' + eps I, multiplies a relative error."""
    similarity = np.asarray(np.corrcoef(z))
    square, eye = similarity.T @ similarity, np.eye(len(z))
    phi, found, condition = eye, eye, 1.0
    for iteration in range(iterations):
        if iteration:
            values, vectors = np.linalg.eigh(found @ found.T + SMOOTH * eye)
            phi = (vectors / np.sqrt(values)) @ vectors.T
            condition = float(values[-1] / values[0])
        matrix = square + 2 * weight * phi
        # Solved for, and not multiplied by the inverse: the error of an inverse is that of the matrix's condition (5e6
        # if 1024 samples are alike), and the equation below would see it times the matrix once more. What a solution
        # leaves of its equation knows no condition: 3 n u |matrix| |solution| (Higham, Accuracy and Stability of
        # Numerical Algorithms, Theorem 9.4), here of two solutions.
        free, inverse = np.hsplit(np.linalg.solve(matrix, np.hstack([square, eye])), 2)
        own = inverse * (np.diag(free) / np.diag(inverse))
        found = free - own
        np.fill_diagonal(found, 0.0)
        slope = matrix @ found - square  # of the objective in B; only its diagonal, which B must not use, may differ
        np.fill_diagonal(slope, 0.0)
        left = 3 * len(z) * UNIT * np.linalg.norm(matrix, np.inf) * (np.abs(free).max() + np.abs(own).max())
        assert np.abs(slope).max() < left
    return found, condition


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("collapsed, each sample twice", 128),
        ("each sample four times", 128),
        ("all alike", 128),
        ("collapsed, each sample twice", 1024),
        ("all alike", 1024),
    ],
)
def test_relations_mined_in_float32_are_those_of_float64(kind: str, count: int) -> None:
    """But for Phi, which is found in float32: the eigenvalues of B B' + eps I are off by sqrt(n) roundings of the
    largest; where they are the smallest, that is a relative error `condition` times as large, and half of it in Phi."""
    part = RelationalAugmentation()
    z = features(kind, count)
    found = mine_relations(pearson(z), part.relation_weight, part.iterations)
    expected, condition = relations_at_once(z.double().numpy(), part.relation_weight, part.iterations)
    assert found.dtype == torch.float32
    allowed = math.sqrt(count) * float(np.finfo(np.float32).eps) * condition / 2
    assert np.abs(found.double().numpy() - expected).max() < allowed * np.abs(expected).max()


@pytest.mark.parametrize("size", [1.0, 30.0, 1e4])
def test_attention_sums_to_one_however_large_the_scores(size: float) -> None:
    """With a feature that is 1 in every sample, the message has it too; and each message is the plain loop's."""
    torch.manual_seed(0)
    layer, z = Messages(6, own_share=0.0), torch.randn(8, 6)
    z[:, 0] = 1.0
    for linear in (layer.receive, layer.send):
        linear.weight.data.mul_(size)
    near = [{(i + step) % 8: 10.0**-step for step in (1, 2, 3)} for i in range(7)] + [{}]  # the last one has nobody
    graph = torch.zeros(8, 8)
    for i, strengths in enumerate(near):
        for j, strength in strengths.items():
            graph[i, j] = strength
    out = layer(z, graph)
    torch.testing.assert_close(out[:, 0], torch.ones(8), atol=1e-6, rtol=0)
    wide = copy.deepcopy(layer).double().requires_grad_(False)
    for i, strengths in enumerate(near):
        scores = {j: float(wide.receive(z[i].double()) @ wide.send(z[j].double())) / math.sqrt(6) for j in strengths}
        highest = max(scores.values(), default=0.0)
        terms = {j: strengths[j] * math.exp(score - highest) for j, score in scores.items()}
        message = sum(
            (term / sum(terms.values()) * z[j].double() for j, term in terms.items()), torch.zeros(6).double()
        )
        expected = message if strengths else z[i].double()
        torch.testing.assert_close(out[i].double(), expected, atol=1e-4 if size < 100 else 1e-2, rtol=0)
    out.square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in layer.parameters())
