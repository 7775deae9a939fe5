"""FedPer, FedRep, FedBN and FedBABU: plain loops in float64, and the limits in which they are FedAvg."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedframe
from fedframe.core.evaluation import score_round, score_shared
from fedframe.core.job import Job
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import SettingError
from fedframe.methods.parts.fedbn import FedBN
from fedframe.methods.parts.fednova import FedNova
from fedframe.methods.parts.fedper import FedPer, layers_of
from fedframe.methods.parts.fedrep import FedRep
from fedframe.methods.parts.ffc import FFC
from fedframe.methods.recipes import make_method
from fedframe.models import build_net
from fedframe.settings import Settings
from tests.helpers import nothing
from tests.methods.plain import average, batches, plain_model
from tests.methods.toy import job_of, trained

NORMED = "tests.models.normed:normed"


def plain_rounds(
    job: Job, rounds: int, stays: Callable[[str], bool], learns: Callable[[int], Callable[[str], bool]]
) -> tuple[nn.Sequential, list[nn.Sequential]]:
    """What the server has and what each client has after some rounds.

    `stays` names the tensors that are not averaged; `learns(epoch)` those that are trained in an epoch.
    """
    shared = plain_model(job)
    own = [copy.deepcopy(shared) for _ in range(len(job.federation))]
    for round in range(1, rounds + 1):
        weights = []
        for client, model in enumerate(own):
            state = shared.state_dict()
            model.load_state_dict({n: t if stays(n) else state[n] for n, t in model.state_dict().items()})
            model.train()
            found = batches(job, round, client)
            for number, (x, y) in enumerate(found):
                chosen = learns(number * job.settings.epochs // len(found))
                model.zero_grad()
                F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                with torch.no_grad():
                    for name, p in model.named_parameters():
                        if chosen(name) and p.grad is not None:
                            p.sub_(job.settings.lr * p.grad)
            weights.append(float(len(job.federation.train[client])))
        average(own, weights, shared)
    return shared, own


def compare(job: Job, server: Server, shared: nn.Sequential, own: list[nn.Sequential]) -> None:
    """Whether server and clients have what the plain loop gave."""
    names = {("0." if n.startswith("backbone.") else "1.") + n.partition(".")[2]: n for n in job.roles.changing}
    for plain, name in names.items():
        if name not in job.roles.private:
            expected = shared.state_dict()[plain]
            torch.testing.assert_close(server.tensor(name).double(), expected, atol=3e-5, rtol=1e-4)
            continue
        for client, model in enumerate(own):
            kept = job.store.load(client, before=server.round + 1)[f"model/{name}"]
            torch.testing.assert_close(kept.double(), model.state_dict()[plain], atol=3e-5, rtol=1e-4)


# -- FedPer ------------------------------------------------------------------------------------------------------------
def test_fedper_with_nothing_private_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    ours, theirs = trained(job_of(tmp_path / "a", FedPer(layers=0))), trained(job_of(tmp_path / "b"))
    assert torch.equal(ours.model, theirs.model)
    assert ours.job.shares_a_model
    assert score_shared(ours, "local-all") == score_shared(theirs, "local-all")


@pytest.mark.parametrize("layers", [1, 2])
def test_fedper_equals_a_plain_loop(tmp_path: Path, layers: int) -> None:
    job = job_of(tmp_path, FedPer(layers=layers), epochs=2, model="mlp:8x6")
    stays = ("1.",) if layers == 1 else ("1.", "0.layers.1.")
    plain = plain_rounds(job, 3, lambda name: name.startswith(stays), lambda epoch: lambda name: True)
    compare(job, trained(job, 3), *plain)
    assert len(job.roles.private) == 2 * layers


def test_heads_of_fedper_start_alike_differ_and_stay_with_clients_that_are_not_drawn(tmp_path: Path) -> None:
    job = job_of(tmp_path, FedPer(), participation=0.34)
    server = Server(job, InlineEngine(job), nothing)
    first = server.select_clients(1)[0]
    server.run_round(1, nothing)
    server.round = 1
    mine = job.store.load(first, before=2)["model/head.weight"]
    assert not torch.equal(mine, job.template.state_dict()["head.weight"])
    second = next(round for round in range(2, 50) if server.select_clients(round)[0] != first)
    server.run_round(second, nothing)
    assert torch.equal(job.store.load(first, before=99)["model/head.weight"], mine)
    other = job.store.load(server.select_clients(second)[0], before=99)["model/head.weight"]
    assert not torch.equal(other, mine)


def test_fedper_has_no_generic_score_but_a_personal_one_each_round(tmp_path: Path) -> None:
    scores = score_round(trained(job_of(tmp_path, FedPer()), 2))
    assert scores.generic is None
    assert scores.client is None
    assert scores.personal is not None


def test_layer_is_a_map_with_the_norms_and_scales_behind_it() -> None:
    model = make_method("fedper+fedetf", {}).build(build_net(NORMED, (5,)), 12, 3)
    found = layers_of(model)
    assert [layer[0] for layer in found] == ["backbone.1.weight", "extras.projection.weight"]
    assert {"backbone.2.weight", "backbone.2.running_var"} < {*found[0]}
    assert found[1][-1].startswith("extras.temperature")  # the frozen classifier does not count


def test_fedper_says_how_many_layers_can_be_private(tmp_path: Path) -> None:
    settings = {"fedper": {"layers": 3}}
    with pytest.raises(SettingError, match=r"fedper.layers = 3 leaves nothing to share of the 3 .*use 2 or fewer"):
        fedframe.run("fedper", model="mlp:8x6", out=tmp_path / "run", progress=False, set=settings)
    assert not (tmp_path / "run").exists()


def test_server_stage_for_a_classifier_that_nobody_has_is_refused() -> None:
    with pytest.raises(SettingError, match=r"'fedper' keeps the last layer.*'ffc' fits.*leave one of them out"):
        make_method("fedper+spherefed", {})


# -- FedRep ------------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_fedrep_equals_a_plain_loop(tmp_path: Path) -> None:
    job = job_of(tmp_path, FedPer(), FedRep(body_epochs=2), epochs=5)

    def learns(epoch: int) -> Callable[[str], bool]:
        return lambda name: name.startswith("1.") == (epoch < 3)

    compare(job, trained(job, 3), *plain_rounds(job, 3, lambda name: name.startswith("1."), learns))


def test_fedrep_with_nothing_private_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    ours = trained(job_of(tmp_path / "a", FedPer(layers=0), FedRep(), epochs=2))
    assert torch.equal(ours.model, trained(job_of(tmp_path / "b", epochs=2)).model)


def test_fedrep_counts_the_steps_that_moved_what_is_sent(tmp_path: Path) -> None:
    """FedNova then takes the plain mean where all clients have equally many."""
    job = job_of(tmp_path, FedPer(), FedRep(), FedNova(), epochs=4, batch=8)
    server = trained(job, 1)
    reply = next(server.engine.run(server.build_request("train", 2), [0]))
    assert reply.numbers["steps"] == -(-len(job.federation.train[0]) // 8)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"epochs": 1}, "fedrep.body_epochs = 1 leaves no epoch for the heads with epochs = 1; use epochs = 2"),
        ({"epochs": 5, "steps": 10}, "steps = 10 cannot be used; use epochs"),
    ],
)
def test_fedrep_needs_epochs_for_both(settings: dict[str, int], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        FedRep().check_settings(Settings(**settings))


# -- FedBN -------------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_fedbn_equals_a_plain_loop(tmp_path: Path) -> None:
    job = job_of(tmp_path, FedBN(), epochs=2, model=NORMED, batch=8)  # no batch of one sample
    assert {name.rpartition(".")[2] for name in job.roles.private} == {"weight", "bias", "running_mean", "running_var"}
    plain = plain_rounds(job, 3, lambda name: name.startswith("0.2."), lambda epoch: lambda name: True)
    compare(job, trained(job, 3), *plain)


def test_fedbn_keeps_statistics_private_whatever_buffers_says_and_has_no_generic_score(tmp_path: Path) -> None:
    for buffers in ("average", "fixed"):
        job = job_of(tmp_path / buffers, FedBN(), model=NORMED, buffers=buffers)
        assert "backbone.2.running_mean" in job.roles.private
        assert not job.shares_a_model


def test_fedbn_refuses_a_net_without_batch_norm_before_there_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"this net has none; use one that has, e.g. model = resnet20"):
        fedframe.run("fedbn", out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_statistics_for_the_server_come_from_batch_norm_that_was_trained(tmp_path: Path) -> None:
    """A client that was in no round first trains its own."""
    job = job_of(tmp_path, FedBN(), FFC(), model=NORMED, participation=0.34)
    server = Server(job, InlineEngine(job), nothing)
    server.run_round(1, nothing)
    absent = next(client for client in range(3) if client not in server.select_clients(1))
    runtime = server.engine.runtime  # type: ignore[attr-defined]
    runtime.perform(server.build_request("statistics", 2), absent)
    assert not torch.equal(runtime.model.state_dict()["backbone.2.running_mean"], torch.zeros(12))


# -- FedBABU -----------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_fedbabu_leaves_the_head_alone_in_rounds_and_fine_tunes_everything(tmp_path: Path) -> None:
    given: dict[str, Any] = {"clients": 4, "workers": 1, "progress": False}
    done = fedframe.run("fedbabu", out=tmp_path / "run", rounds=1, **given)
    later = fedframe.run("fedbabu", out=tmp_path / "more", rounds=2, **given).model.model.state_dict()
    shared, own = done.model.model.state_dict(), done.personal(1).model.state_dict()
    assert torch.equal(shared["head.weight"], later["head.weight"])
    assert not torch.equal(shared["backbone.layers.0.weight"], later["backbone.layers.0.weight"])
    for name in ("head.weight", "backbone.layers.0.weight"):
        assert not torch.equal(own[name], shared[name])
    body = sum(tensor.numel() for name, tensor in shared.items() if name.startswith("backbone."))
    assert done.history[0]["bytes_up"] == pytest.approx(4 * 4 * body, rel=0.01)
