"""FedSAM against Algorithm 1 in plain float64, by hand on a quadratic, where it is FedAvg, and with other parts."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedframe.core.part import Part
from fedframe.errors import SettingError
from fedframe.methods.parts.fedper import FedPer
from fedframe.methods.parts.fedsam import FedSAM
from fedframe.methods.parts.scaffold import Scaffold
from fedframe.methods.recipes import make_method
from tests.methods.plain import average, batches, client_weight, plain_model, same
from tests.methods.toy import job_of, trained

MANY: dict[str, Any] = {"epochs": 2, "lr": 0.05, "participation": 0.67}


class Bowl:
    """What a step sees of F(w) = (a^2 + b^2) / 2: gradients are the weights themselves."""

    def __init__(self, a: float, b: float) -> None:
        self.named = {"a": nn.Parameter(torch.tensor([a])), "b": nn.Parameter(torch.tensor([b]))}
        self.gradients = 0

    def compute_gradient(self) -> torch.Tensor:
        self.gradients += 1
        for weight in self.named.values():
            weight.grad = weight.detach().clone()
        return torch.stack([weight.detach().square() for weight in self.named.values()]).sum() / 2

    def apply_gradient(self, lr: float = 0.1) -> None:
        for weight in self.named.values():
            assert weight.grad is not None
            weight.data -= lr * weight.grad


def test_a_step_by_hand() -> None:
    """At (3, 4) the gradient has norm 5: .5 uphill is (3.3, 4.4), whose gradient is taken from (3, 4)."""
    bowl: Any = Bowl(3.0, 4.0)
    assert float(FedSAM(rho=0.5).step(bowl)) == 12.5  # F(3, 4), not F(3.3, 4.4)
    assert [weight.item() for weight in bowl.named.values()] == pytest.approx([2.67, 3.56])
    assert bowl.gradients == 2


def test_a_gradient_of_zero_has_no_uphill_direction() -> None:
    bowl: Any = Bowl(0.0, 0.0)
    FedSAM().step(bowl)
    assert [weight.item() for weight in bowl.named.values()] == [0.0, 0.0]
    assert bowl.gradients == 1


@pytest.mark.parametrize("others", [(), (Scaffold(),), (FedPer(),)], ids=["alone", "scaffold", "fedper"])
def test_fedsam_with_rho_zero_is_fedavg(tmp_path: Path, others: tuple[Part, ...]) -> None:
    sam = trained(job_of(tmp_path / "a", FedSAM(rho=0.0), *others, momentum=0.5, **MANY), 3)
    assert torch.equal(sam.model, trained(job_of(tmp_path / "b", *others, momentum=0.5, **MANY), 3).model)


def sam_gradient(model: nn.Sequential, rho: float, x: torch.Tensor, y: torch.Tensor, shift: Any = None) -> None:
    """Leave the gradient at w + rho g / ||g|| with the weights; `shift` is added to both gradients."""
    weights = list(model.parameters())
    shift = shift or [torch.zeros_like(weight) for weight in weights]
    first = torch.autograd.grad(F.cross_entropy(model(x), y), weights)
    uphill = [gradient + extra for gradient, extra in zip(first, shift, strict=True)]
    length = sum(float(gradient.square().sum()) for gradient in uphill) ** 0.5
    there = copy.deepcopy(model)
    for weight, gradient in zip(there.parameters(), uphill, strict=True):
        weight.data = weight.data + rho / length * gradient
    second = torch.autograd.grad(F.cross_entropy(there(x), y), list(there.parameters()))
    for weight, gradient, extra in zip(weights, second, shift, strict=True):
        weight.grad = gradient + extra


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_fedsam_equals_a_plain_loop(tmp_path: Path, weighting: str, momentum: float) -> None:
    rho = 0.3
    job = job_of(tmp_path, FedSAM(rho=rho), momentum=momentum, weighting=weighting, weight_decay=0.01, **MANY)
    server = trained(job, 4)
    shared = plain_model(job)
    for round in (1, 2, 3, 4):
        models, chosen = [], server.select_clients(round)
        assert len(chosen) == 2
        for client in chosen:
            model = copy.deepcopy(shared)
            optimizer = torch.optim.SGD(model.parameters(), lr=job.settings.lr, momentum=momentum, weight_decay=0.01)
            for x, y in batches(job, round, client):
                sam_gradient(model, rho, x, y)
                optimizer.step()
            models.append(model)
        average(models, [client_weight(job, client) for client in chosen], shared)
    same(job, server, shared)


@pytest.mark.slow
def test_fedsam_under_scaffold_equals_a_plain_loop(tmp_path: Path) -> None:
    """Variates correct the gradient that says where uphill is, too, and are read from the steps as SCAFFOLD does."""
    rho, lr = 0.3, MANY["lr"]
    job = job_of(tmp_path, Scaffold(), FedSAM(rho=rho), weighting="uniform", **MANY)
    server = trained(job, 4)
    shared = plain_model(job)
    count = len(job.federation)
    c = [torch.zeros_like(weight) for weight in shared.parameters()]
    own = [[torch.zeros_like(weight) for weight in shared.parameters()] for _ in range(count)]
    for round in (1, 2, 3, 4):
        models, changes, chosen = [], [], server.select_clients(round)
        for client in chosen:
            model, steps = copy.deepcopy(shared), 0
            shift = [a - b for a, b in zip(c, own[client], strict=True)]
            optimizer = torch.optim.SGD(model.parameters(), lr=lr)
            for x, y in batches(job, round, client):
                sam_gradient(model, rho, x, y, shift)
                optimizer.step()
                steps += 1
            moved = [(old - new).detach() for old, new in zip(shared.parameters(), model.parameters(), strict=True)]
            new = [k - s + m / (steps * lr) for k, s, m in zip(own[client], c, moved, strict=True)]  # line 10
            changes.append([after - before for after, before in zip(new, own[client], strict=True)])
            own[client] = new
            models.append(model)
        average(models, [1.0] * len(models), shared)
        for change in changes:
            c = [a + b / count for a, b in zip(c, change, strict=True)]
    same(job, server, shared)


@pytest.mark.slow
def test_fedsam_with_private_heads_equals_a_plain_loop(tmp_path: Path) -> None:
    """What stays on the client is climbed with the rest: the norm is that of the whole gradient."""
    rho = 0.3
    job = job_of(tmp_path, FedPer(), FedSAM(rho=rho), **MANY)
    server = trained(job, 4)
    shared = plain_model(job)
    heads: list[Any] = [copy.deepcopy(shared[1]) for _ in range(len(job.federation))]
    for round in (1, 2, 3, 4):
        models, chosen = [], server.select_clients(round)
        for client in chosen:
            model = nn.Sequential(copy.deepcopy(shared[0]), heads[client])
            optimizer = torch.optim.SGD(model.parameters(), lr=job.settings.lr)
            for x, y in batches(job, round, client):
                sam_gradient(model, rho, x, y)
                optimizer.step()
            models.append(nn.Sequential(model[0], copy.deepcopy(shared[1])))
        average(models, [client_weight(job, client) for client in chosen], shared)
    same(job, server, shared)
    for client, head in enumerate(heads):
        kept = job.store.load(client, before=5)["model/head.weight"]
        torch.testing.assert_close(kept.double(), head.weight.detach(), atol=3e-5, rtol=1e-4)


def test_fine_tuning_takes_plain_steps(tmp_path: Path) -> None:
    """From the same model, personal models are those of FedAvg."""
    found = []
    for name, parts in (("a", (FedSAM(rho=0.5),)), ("b", ())):
        server = trained(job_of(tmp_path / name, *parts), 0)
        runtime = server.engine.runtime  # type: ignore[attr-defined]
        context = runtime.begin(server.build_request("personalise", 1), 0)
        context.fit(1)
        found.append(runtime.flat.clone())
    assert torch.equal(*found)


def test_two_parts_that_take_the_step_are_refused() -> None:
    with pytest.raises(SettingError, match="'fedsam' and 'pfedme' both claim the step slot; leave one out"):
        make_method("fedsam+pfedme", {})


@pytest.mark.parametrize("rho", [-0.1, "far", float("nan")])
def test_bad_rho_is_refused_in_one_sentence(rho: Any) -> None:
    with pytest.raises(SettingError, match=r"^fedsam.rho = [^\n]*; the default is 0.05\.$"):
        make_method("fedsam", {"fedsam": {"rho": rho}})
