"""The two loops against a plain FedAvg in float64, and what must never reach the model."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedframe.core.aggregation import RunningMean
from fedframe.core.engine import Engine
from fedframe.core.job import Job
from fedframe.core.message import Message
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import RunError
from fedframe.util.seeds import generator_for
from tests.helpers import blobs, images, make_job, nothing


def train(job: Job, rounds: int = 2) -> Server:
    engine = InlineEngine(job)
    server = Server(job, engine)
    for round in range(1, rounds + 1):
        server.run_round(round, nothing)
    engine.close()
    return server


def plain_fedavg(job: Job, rounds: int, uniform: bool) -> dict[str, torch.Tensor]:
    """FedAvg as one would write it down: a copy per client, float64, weights averaged name by name."""
    settings, source = job.settings, job.federation.source
    shared = nn.Sequential(copy.deepcopy(job.template.backbone), copy.deepcopy(job.template.head)).double()
    for round in range(1, rounds + 1):
        total: dict[str, torch.Tensor] = {}
        weights = 0.0
        for client in range(len(job.federation)):
            model = copy.deepcopy(shared)
            optimizer = torch.optim.SGD(
                model.parameters(),
                lr=settings.lr,
                momentum=settings.momentum,
                weight_decay=settings.weight_decay,
            )
            rows = job.federation.train[client]
            generator = generator_for(settings.seed, "batches", "train", round, client)
            for _ in range(settings.epochs):
                request = rows[torch.randperm(len(rows), generator=generator)]
                for start in range(0, len(request), settings.batch):
                    some = request[start : start + settings.batch]
                    optimizer.zero_grad()
                    loss = F.cross_entropy(model(source.batch(source.train, some).double()), source.train.y[some])
                    loss.backward()  # type: ignore[no-untyped-call]
                    if settings.clip is not None:
                        nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
                    optimizer.step()
            weight = 1.0 if uniform else float(len(rows))
            weights += weight
            for name, value in model.state_dict().items():
                total[name] = total.get(name, torch.zeros_like(value)) + weight * value
        shared.load_state_dict({name: value / weights for name, value in total.items()})
    state = shared.state_dict()
    return {("backbone." if name.startswith("0.") else "head.") + name[2:]: value for name, value in state.items()}


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("more", [{}, {"momentum": 0.9, "weight_decay": 0.01, "clip": 0.5}])
def test_fedavg_equals_a_plain_loop_in_float64(tmp_path: Path, weighting: str, more: dict[str, float]) -> None:
    data = blobs(clients=3)
    data["user_train"] = (torch.arange(72) ** 2 // 1728).numpy()  # clients of different sizes
    job = make_job(tmp_path, data, weighting=weighting, epochs=2, lr=0.2, **more)
    assert len(set(job.federation.train.sizes().tolist())) > 1
    ours = job.roles.layout.views(train(job).model)
    reference = plain_fedavg(job, 2, weighting == "uniform")
    assert ours.keys() == reference.keys()
    for name, value in reference.items():
        torch.testing.assert_close(ours[name].double(), value, atol=2e-5, rtol=1e-4)


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(-1e3, 1e3, width=32), st.floats(0.5, 100)), min_size=1, max_size=8))
def test_running_mean_equals_a_plain_sum(pairs: list[tuple[float, float]]) -> None:
    mean = RunningMean(1)
    for value, weight in pairs:
        mean.add(torch.tensor([value]), weight)
    expected = sum(v * w for v, w in pairs) / sum(w for _, w in pairs)
    assert float(mean.mean()) == pytest.approx(expected, rel=1e-12, abs=1e-12)


class Meddler(Engine):
    """An engine whose replies are spoilt on the way."""

    def __init__(self, job: Job, spoil: dict[int, torch.Tensor]) -> None:
        self.engine, self.spoil = InlineEngine(job), spoil

    def run(self, request: Message, units: Sequence[int]) -> Iterator[Message]:
        for reply in self.engine.run(request, units):
            bad = self.spoil.get(reply.unit) if request.kind == "train" else None
            yield reply if bad is None else replace(reply, tensors={"update": bad})


def test_spoilt_updates_are_dropped_counted_and_leave_no_trace(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    size = job.roles.layout.size
    nan = torch.full((size,), float("nan"))
    notes: list[str] = []
    server = Server(job, Meddler(job, {1: nan, 2: torch.zeros(size + 1)}), notes.append)
    record = server.run_round(1, nothing)
    assert record.dropped == 2
    assert "client 1 was refused: update holds NaN" in " ".join(notes)

    good = Server(job, InlineEngine(job))
    replies = list(good.engine.run(good.build_request("train", 1), [0, 3]))
    samples = [float(reply.numbers["samples"]) for reply in replies]
    mean = sum(w * r.tensors["update"].double() for w, r in zip(samples, replies, strict=True)) / sum(samples)
    torch.testing.assert_close(server.model, (good.model.double() + mean).float(), atol=0, rtol=0)


def test_round_without_a_single_good_update_ends_the_run_with_a_hint(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    nan = torch.full((job.roles.layout.size,), float("nan"))
    server = Server(job, Meddler(job, dict.fromkeys(range(4), nan)), nothing)
    before = server.model.clone()
    with pytest.raises(RunError, match=r"not one of 4 updates could be used.*smaller lr"):
        server.run_round(1, nothing)
    assert torch.equal(server.model, before)


def test_largest_clients_come_first_and_the_draw_is_seeded(tmp_path: Path) -> None:
    job = make_job(tmp_path, blobs(clients=10), participation=0.5)
    server = Server(job, InlineEngine(job))
    sizes = job.federation.train.sizes()
    for round in range(1, 6):
        chosen = server.select_clients(round)
        assert len(chosen) == len(set(chosen)) == 5
        assert [int(sizes[c]) for c in chosen] == sorted((int(sizes[c]) for c in chosen), reverse=True)
        assert chosen == Server(job, InlineEngine(job)).select_clients(round)
    assert len({tuple(sorted(server.select_clients(round))) for round in range(1, 20)}) > 3


def test_steps_instead_of_epochs(tmp_path: Path) -> None:
    job = make_job(tmp_path, steps=7)
    engine = InlineEngine(job)
    replies = list(engine.run(Server(job, engine).build_request("train", 1), [0, 1]))
    assert [reply.numbers["steps"] for reply in replies] == [7, 7]


@pytest.mark.slow
def test_batch_norm_statistics_of_a_resnet_are_the_mean_of_the_clients(tmp_path: Path) -> None:
    data = images(side=8, count=48)
    job = make_job(tmp_path, data, "resnet20", partition="iid", clients=3, epochs=1, lr=0.01)
    engine = InlineEngine(job)
    server = Server(job, engine)
    request = server.build_request("train", 1)
    replies = {reply.unit: reply for reply in engine.run(request, server.select_clients(1))}
    start = job.roles.layout.views(server.model)
    name = next(name for name in start if name.endswith("running_var"))
    weights = {unit: float(reply.numbers["samples"]) for unit, reply in replies.items()}
    expected = start[name].double() + sum(
        weights[unit] * job.roles.layout.views(reply.tensors["update"])[name].double()
        for unit, reply in replies.items()
    ) / sum(weights.values())
    server.run_round(1, nothing)
    torch.testing.assert_close(job.roles.layout.views(server.model)[name].double(), expected, atol=1e-6, rtol=0)
    assert not torch.equal(job.roles.layout.views(server.model)[name], start[name])
    counters = [key for key in engine.runtime.initial if key.endswith("num_batches_tracked")]
    assert counters
    assert not any("num_batches_tracked" in entry.name for entry in job.roles.layout.entries)


@pytest.mark.slow
def test_client_with_one_sample_trains_even_with_batch_norm(tmp_path: Path) -> None:
    data = images(side=8, count=41)
    data["user_train"] = torch.tensor([0] * 40 + [1]).numpy()  # 40 samples leave a last batch of one, too
    job = make_job(tmp_path, data, "resnet20", local_test=0.0, epochs=1, batch=13, lr=0.01)
    assert job.federation.train.sizes().tolist() == [40, 1]
    engine = InlineEngine(job)
    server = Server(job, engine)
    record = server.run_round(1, nothing)
    assert record.dropped == 0
    replies = list(engine.run(server.build_request("train", 2), [0, 1]))
    assert [reply.numbers["steps"] for reply in replies] == [3, 1]  # 13 + 13 + 14, and the lonely one


class BatchNormNet(nn.Module):
    """A net whose BatchNorm sees one value per channel and sample: it cannot be trained on a lone one."""

    dim = 6

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.layers(inputs)
        return features


def test_lone_sample_leaves_batch_norm_as_the_server_sent_it(tmp_path: Path) -> None:
    data = blobs(clients=2, each=12)
    data["user_train"] = np.array([0] * 23 + [1])
    job = make_job(tmp_path, data, BatchNormNet(), local_test=0.0, epochs=2, batch=4, lr=0.1)
    assert job.federation.train.sizes()[1] == 1
    engine = InlineEngine(job)
    server = Server(job, engine)
    large, lone = (
        dict(reply.tensors)["update"].clone() for reply in engine.run(server.build_request("train", 1), [0, 1])
    )
    assert large[job.roles.layout.trainable :].abs().max() > 0
    assert torch.equal(lone[job.roles.layout.trainable :], torch.zeros_like(lone[job.roles.layout.trainable :]))
    assert lone[: job.roles.layout.trainable].abs().max() > 0
