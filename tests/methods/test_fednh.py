"""FedNH: prototypes that only the server moves, by hand and in a plain loop; without moving, a frozen classifier."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedframe.core.message import Message
from fedframe.core.model import Model
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import SettingError
from fedframe.methods.parts.features import Normalise, Temperature
from fedframe.methods.parts.fednh import FedNH
from fedframe.methods.parts.frame_head import Orthonormal
from fedframe.methods.recipes import make_method
from tests.helpers import nothing
from tests.methods.plain import average, batches
from tests.methods.toy import job_of, trained

HEAD = "head.weight"


def built(part: FedNH, classes: int, dim: int) -> torch.Tensor:
    model = Model(nn.Identity(), dim, classes)
    part.build_head(model)
    weight = model.head.weight
    assert isinstance(weight, torch.Tensor)
    assert not weight.requires_grad
    return weight


@pytest.mark.parametrize(("spread", "cosine"), [("orthonormal", 0.0), ("etf", -1 / 4)])
def test_prototypes_start_spread_out_evenly_on_the_sphere(spread: str, cosine: float) -> None:
    weight = built(FedNH(spread=spread), 5, 12)  # type: ignore[arg-type]
    expected = torch.full((5, 5), cosine).fill_diagonal_(1.0)
    torch.testing.assert_close(weight @ weight.T, expected, atol=1e-5, rtol=0)


def test_two_clients_by_hand(tmp_path: Path) -> None:
    """Three samples along e1 and one along e2 give (3, 1) / sqrt(10); half of that and half of w, normalised."""
    job = job_of(tmp_path, FedNH(rho=0.5))
    server = Server(job, InlineEngine(job), nothing)
    e = torch.eye(job.template.dim)
    server.set_tensor(HEAD, e[:3])
    for row, count in ((e[0], 3.0), (e[1], 1.0)):
        sums = torch.zeros(3, job.template.dim)
        sums[2] = count * row
        server.uploads.add(Message("train", 1, 0, {"fednh/sums": sums}), 1.0)
    FedNH(rho=0.5).after_merge(server, 2)
    expected = 0.5 * e[2] + 0.5 * (3 * e[0] + e[1]) / 10**0.5
    torch.testing.assert_close(server.tensor(HEAD)[2], expected / expected.norm())
    assert torch.equal(server.tensor(HEAD)[:2], e[:2])  # nobody had these classes


def test_fednh_with_rho_one_is_a_frozen_orthonormal_classifier(tmp_path: Path) -> None:
    rest = (Normalise(), Temperature())
    ours = trained(job_of(tmp_path / "a", FedNH(rho=1.0), *rest), 2)
    frozen = trained(job_of(tmp_path / "b", Orthonormal(), *rest), 2)
    assert torch.equal(ours.model, frozen.model)
    assert torch.equal(ours.tensor(HEAD), frozen.tensor(HEAD))


@pytest.mark.slow
def test_fednh_equals_a_plain_loop(tmp_path: Path) -> None:
    job = job_of(tmp_path, FedNH(rho=0.7), Normalise(), Temperature(beta=4.0), epochs=2, lr=0.05)
    server = trained(job, 3)
    w = job.template.state_dict()[HEAD].double()
    shared = nn.Sequential(copy.deepcopy(job.template.backbone), nn.Linear(1, 1, bias=False)).double()
    with torch.no_grad():
        shared[1].weight.fill_(4.0)  # type: ignore[operator]
    for round in (1, 2, 3):
        locals_, weights, total = [], [], torch.zeros_like(w)
        for client in range(3):
            model = copy.deepcopy(shared)
            optimizer = torch.optim.SGD(model.parameters(), lr=job.settings.lr)
            for x, y in batches(job, round, client):
                logits = model[1].weight * (F.normalize(model[0](x)) @ w.T)
                optimizer.zero_grad()
                F.cross_entropy(logits, y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            rows, source = job.federation.train[client], job.federation.source
            z, labels = F.normalize(model[0](source.batch(source.train, rows).double())).detach(), source.train.y[rows]
            for c in range(3):
                own = z[labels == c]
                if len(own):
                    total[c] += len(own) * own.mean(0) / own.mean(0).norm()
            locals_.append(model)
            weights.append(float(len(rows)))
        average(locals_, weights, shared)
        for c in range(3):
            moved = 0.7 * w[c] + 0.3 * total[c] / total[c].norm()
            w[c] = moved / moved.norm()
    torch.testing.assert_close(server.tensor(HEAD).double(), w, atol=1e-4, rtol=1e-3)
    beta = server.tensor("extras.temperature.beta").double()
    torch.testing.assert_close(beta, shared.state_dict()["1.weight"].reshape(()), atol=1e-4, rtol=1e-4)


def test_clients_do_not_move_the_prototypes_and_get_them_with_the_next_order(tmp_path: Path) -> None:
    job = job_of(tmp_path, FedNH(rho=0.5), Normalise(), Temperature())
    server = trained(job, 1)
    assert not torch.equal(server.tensor(HEAD), job.template.state_dict()[HEAD])
    runtime = server.engine.runtime  # type: ignore[attr-defined]
    runtime.train(server.build_request("train", 2), 0)
    assert torch.equal(runtime.model.state_dict()[HEAD], server.tensor(HEAD))


def test_rho_above_one_is_refused_with_the_default() -> None:
    with pytest.raises(SettingError, match=r"fednh.rho = 1.5.*the default is 0.9"):
        make_method("fednh", {"fednh": {"rho": 1.5}})
