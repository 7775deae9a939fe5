"""Limits in which a method must be FedAvg, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedframe.core.engine import Engine
from fedframe.core.job import Job, personal_path
from fedframe.core.message import Message
from fedframe.core.part import Part
from fedframe.core.server import Server
from fedframe.methods.parts.fedopt import FedAdagrad, FedYogi
from fedframe.methods.parts.lra import RelationalAugmentation
from fedframe.methods.parts.nash import Nash
from fedframe.util.files import read_tensors
from tests.helpers import nothing
from tests.methods.toy import job_of, trained


@pytest.mark.parametrize("part", [FedAdagrad, FedYogi], ids=lambda part: part.name)
def test_server_optimizer_whose_tau_drowns_all_squares_is_fedavg(
    tmp_path: Path, part: type[FedAdagrad] | type[FedYogi]
) -> None:
    """sqrt(tau^2 + D^2) + tau = 2 tau = lr in double precision, with powers of two: the step is D itself."""
    ours = trained(job_of(tmp_path / "a", part(lr=2.0**41, beta1=0.0, tau=2.0**40), momentum=0.5), 4)
    usual = trained(job_of(tmp_path / "b", momentum=0.5), 4)
    assert torch.equal(ours.model, usual.model)
    assert not torch.equal(ours.model, trained(job_of(tmp_path / "c", momentum=0.5), 3).model)


@pytest.mark.parametrize("steps", [1, 2])
def test_relational_augmentation_that_keeps_all_of_a_feature_and_has_no_contrast_is_fedavg(
    tmp_path: Path, steps: int
) -> None:
    part = RelationalAugmentation(own_share=1.0, contrast_weight=0.0, steps=steps)
    augmented, plain = job_of(tmp_path / "a", part, momentum=0.5), job_of(tmp_path / "b", momentum=0.5)
    for name, value in plain.template.state_dict().items():
        augmented.template.state_dict()[name].copy_(value)
    ours, usual = trained(augmented, 3), trained(plain, 3)
    for name in plain.template.state_dict():
        assert torch.equal(ours.tensor(name), usual.tensor(name)), name


def test_personal_stage_of_relational_augmentation_is_that_of_fedavg(tmp_path: Path) -> None:
    """No messages and no contrast: a client's own model is trained as it will predict."""
    augmented, plain = job_of(tmp_path / "a", RelationalAugmentation()), job_of(tmp_path / "b")
    for name, value in plain.template.state_dict().items():
        augmented.template.state_dict()[name].copy_(value)
    own: list[dict[str, Tensor]] = []
    for job in (augmented, plain):
        server = trained(job, 0)
        server.engine.runtime.perform(server.build_request("personalise", 1), 0)  # type: ignore[attr-defined]
        own.append(read_tensors(personal_path(job.folder, 0))[0])
    shared = {name for name in own[0] if not name.startswith("extras.")}
    assert shared == {*own[1]} == {*plain.template.state_dict()}
    assert all(torch.equal(own[0][name], own[1][name]) for name in shared)


class Alike(Engine):
    """An engine whose clients, of different sizes, all reply the same update."""

    def __init__(self, update: Tensor, clients: int) -> None:
        self.update, self.clients = update, clients

    def run(self, request: Message, units: Sequence[int]) -> Iterator[Message]:
        for unit in range(self.clients):
            numbers: dict[str, int | float | str] = {"samples": 3 * unit + 1, "loss": 1.0, "steps": 1}
            yield Message(request.kind, request.round, unit, {"update": self.update.clone()}, numbers)


def moved(job: Job, clients: int, start: float) -> Tensor:
    """The model after a round of identical updates, from its random start or (0) from nothing."""
    update = 0.1 * torch.randn(job.roles.layout.size, generator=torch.Generator().manual_seed(clients))
    server = Server(job, Alike(update, clients), nothing)
    server.model = start * server.model
    server.run_round(1, nothing)
    return server.model


@pytest.mark.parametrize("say", ["weights", "equal"])
@pytest.mark.parametrize("length", ["fedavg_norm", "sum"])
@pytest.mark.parametrize(("clients", "start"), [(1, 0.0), (1, 1.0), (2, 0.0), (4, 0.0), (5, 0.0)])
def test_bargain_over_identical_updates_is_fedavg(
    tmp_path: Path, clients: int, start: float, length: Any, say: Any
) -> None:
    """Shares of a fifth are rounded, so that halves may be rounded the other way; from zero nothing is halfway."""
    parts: list[list[Part]] = [[Nash(length, say)], []]
    ours, usual = (moved(job_of(tmp_path, *some), clients, start) for some in parts)
    assert torch.equal(ours, usual)
