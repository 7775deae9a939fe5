"""Every client alone, and all data in one place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import SettingError
from fedframe.methods.parts.alone import Central, Local
from fedframe.methods.parts.ditto import Ditto
from fedframe.methods.parts.losses import PRIOR, BalancedCrossEntropy
from fedframe.methods.recipes import make_method
from fedframe.settings import Settings
from fedframe.util.seeds import generator_for
from tests.helpers import blobs, nothing
from tests.methods.plain import batches, plain_model, same
from tests.methods.toy import job_of, trained


@pytest.mark.slow
def test_local_equals_plain_training_of_every_client_and_sends_nothing(tmp_path: Path) -> None:
    job = job_of(tmp_path, Local(), epochs=2, momentum=0.5)
    server = Server(job, InlineEngine(job), nothing)
    for round in (1, 2, 3):
        record = server.run_round(round, nothing)
        server.round = round
        assert (record.bytes_up, record.bytes_down) == (0, 0)
    for client in range(3):
        model = plain_model(job)
        for round in (1, 2, 3):
            optimizer = torch.optim.SGD(model.parameters(), lr=job.settings.lr, momentum=0.5)  # fresh in every round
            for x, y in batches(job, round, client):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        memory = job.store.load(client, before=4)
        for name, value in model.state_dict().items():
            kept = memory[("model/backbone." if name.startswith("0.") else "model/head.") + name[2:]]
            torch.testing.assert_close(kept.double(), value, atol=3e-5, rtol=1e-4)
    scores = server.conclude(nothing)
    assert scores.generic is None
    assert scores.personal_count == 3


def test_own_side_of_ditto_without_a_pull_is_local(tmp_path: Path) -> None:
    """One batch of all data, so that the order of samples does not matter."""
    job = job_of(tmp_path / "a", Ditto(lam=0.0), steps=1, batch=1000)
    alone = job_of(tmp_path / "b", Local(), steps=1, batch=1000)
    trained(job, 3)
    trained(alone, 3)
    for client in range(3):
        own, memory = job.store.load(client, before=4), alone.store.load(client, before=4)
        for name in job.roles.changing:
            torch.testing.assert_close(own[f"ditto/{name}"], memory[f"model/{name}"], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("part", ["scaffold", "prox", "fednova", "gmv", "ffc", "ditto", "apple"])
def test_local_refuses_what_would_have_nothing_to_work_with(part: str) -> None:
    with pytest.raises(SettingError, match=r"'local' sends nothing, so that '\w+' would|both claim"):
        make_method(f"local+{part}", {})


def test_central_of_one_client_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    data = blobs(clients=1, each=50)
    ours = trained(job_of(tmp_path / "a", Central(), data=data), 3)
    assert torch.equal(ours.model, trained(job_of(tmp_path / "b", data=data), 3).model)


def test_central_equals_plain_training_on_the_pooled_data(tmp_path: Path) -> None:
    job = job_of(tmp_path, Central(), epochs=2, participation=0.34)
    server = trained(job, 2)
    model, source, pooled = plain_model(job), job.federation.source, job.federation.train.values
    for round in (1, 2):
        generator = generator_for(job.settings.seed, "batches", "train", round, 0)
        for _ in range(2):
            shuffled = pooled[torch.randperm(len(pooled), generator=generator)]
            for some in shuffled.split(job.settings.batch):  # type: ignore[no-untyped-call]
                model.zero_grad()
                loss = F.cross_entropy(model(source.batch(source.train, some).double()), source.train.y[some])
                loss.backward()  # type: ignore[no-untyped-call]
                with torch.no_grad():
                    for p in model.parameters():
                        p.sub_(job.settings.lr * p.grad)  # type: ignore[operator]
    assert len(pooled) == 54
    same(job, server, model)


def test_central_is_scored_like_a_shared_model_and_fine_tuned_by_every_client(tmp_path: Path) -> None:
    scores = trained(job_of(tmp_path, Central()), 3).conclude(nothing)
    assert scores.generic is not None
    assert scores.client_count == 3
    assert scores.personal_count == 3


def test_counts_of_classes_are_those_of_the_pooled_data(tmp_path: Path) -> None:
    job = job_of(tmp_path, Central(), BalancedCrossEntropy())
    server = Server(job, InlineEngine(job), nothing)
    runtime = server.engine.runtime  # type: ignore[attr-defined]
    context = runtime.begin(server.build_request("train", 1), 0)
    assert context.class_counts.tolist() == job.federation.table().sum(0).tolist()
    torch.testing.assert_close(context.scratch[PRIOR], job.federation.table().sum(0).clamp_min(1).log().float())
    assert (
        runtime.begin(server.build_request("personalise", 1), 0).class_counts.tolist()
        == job.federation.table()[0].tolist()
    )


@pytest.mark.parametrize("part", ["scaffold", "fedper", "fedloge", "ditto"])
def test_central_refuses_what_clients_would_keep(part: str) -> None:
    with pytest.raises(SettingError, match=r"'central' has no clients in its rounds on which '\w+' could keep"):
        make_method(f"central+{part}", {})


def test_central_refuses_private_statistics() -> None:
    with pytest.raises(SettingError, match="buffers cannot be private; use average"):
        Central().check_settings(Settings(buffers="private"))
