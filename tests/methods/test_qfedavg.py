"""q-FedAvg against Algorithm 2 in plain float64, by hand for one client, where it is FedAvg, and with other parts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedframe.core.job import Job
from fedframe.core.part import Part
from fedframe.core.scratch import Scratch
from fedframe.errors import DivergedError, SettingError
from fedframe.methods.parts.fedper import FedPer
from fedframe.methods.parts.losses import BalancedCrossEntropy
from fedframe.methods.parts.qfedavg import QFedAvg
from fedframe.methods.parts.scaffold import Scaffold
from fedframe.methods.recipes import make_method
from fedframe.network.compatibility import check_secure_aggregation
from fedframe.settings import Settings
from tests.methods.plain import client_weight, difference, move, plain_model, same, train_locally
from tests.methods.toy import job_of, trained


@pytest.mark.parametrize(
    ("q", "update", "h"),
    [
        # F = 2, w - w_k = (3, 4), L = 1 / .5 = 2, so that D = (6, 8) and h = q F^(q-1) 100 + 2 F^q; all divided by L.
        (0.0, [-3.0, -4.0], 1.0),
        (1.0, [-6.0, -8.0], (100 + 4) / 2),
        (2.0, [-12.0, -16.0], (2 * 2 * 100 + 2 * 4) / 2),
    ],
)
def test_a_reply_by_hand(q: float, update: list[float], h: float) -> None:
    context: Any = SimpleNamespace(
        training=True,
        lr=0.5,
        scratch=Scratch(),
        mean_loss=lambda: 2.0,
        trainable=lambda vector: vector[:2],
        reply={"update": torch.tensor([-3.0, -4.0, 7.0])},  # 7: of a buffer, which is averaged as it is
    )
    QFedAvg(q).begin(context)
    QFedAvg(q).finish(context)
    assert context.reply["update"].tolist() == [*update, 7.0]
    assert context.reply["qfedavg/h"].tolist() == [h]


@pytest.mark.parametrize("others", [(), (Scaffold(),), (FedPer(),)], ids=["alone", "scaffold", "fedper"])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_qfedavg_with_q_zero_is_fedavg(tmp_path: Path, weighting: str, others: tuple[Part, ...]) -> None:
    settings: dict[str, Any] = {"participation": 0.67, "weighting": weighting, "momentum": 0.5}
    fair = trained(job_of(tmp_path / "a", QFedAvg(0.0), *others, **settings), 3)
    assert torch.equal(fair.model, trained(job_of(tmp_path / "b", *others, **settings), 3).model)


@torch.no_grad()
def loss_at(job: Job, model: nn.Sequential, client: int, balanced: bool) -> float:
    """F_k of a model over all of a client's training samples."""
    source, rows = job.federation.source, job.federation.train[client]
    labels = source.train.y[rows]
    logits: Tensor = model(source.batch(source.train, rows).double())
    if balanced:
        logits = logits + torch.bincount(labels, minlength=logits.shape[1]).clamp_min(1).double().log()
    return float(F.cross_entropy(logits, labels))


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("q", [0.5, 1.0, 3.0])
def test_qfedavg_equals_a_plain_loop(tmp_path: Path, weighting: str, q: float) -> None:
    """Algorithm 2 as it is printed, with L, but for the weights of the clients."""
    job = job_of(tmp_path, QFedAvg(q), epochs=2, lr=0.05, momentum=0.5, weighting=weighting, participation=0.67)
    server = trained(job, 4)
    shared, L = plain_model(job), 1 / 0.05
    for round in (1, 2, 3, 4):
        above, below = torch.zeros(()), 0.0
        chosen = server.select_clients(round)
        assert len(chosen) == 2
        for client in chosen:
            loss = loss_at(job, shared, client, balanced=False)
            d = -L * difference(train_locally(job, shared, round, client), shared)
            weight = client_weight(job, client)
            above = above + weight * loss**q * d
            below += weight * (q * loss ** (q - 1) * float(d.norm()) ** 2 + L * loss**q)
        move(shared, -above / below)
    same(job, server, shared)


def test_loss_is_the_methods_own(tmp_path: Path) -> None:
    """It is taken when other parts have prepared theirs."""
    job = job_of(tmp_path, QFedAvg(1.0), BalancedCrossEntropy())
    server = trained(job, 0)
    runtime = server.engine.runtime  # type: ignore[attr-defined]
    for client in range(len(job.federation)):
        context = runtime.begin(server.build_request("train", 1), client)
        assert context.scratch[QFedAvg.f_k] == pytest.approx(loss_at(job, plain_model(job), client, True), rel=1e-5)


def test_other_parts_see_the_update_as_it_was(tmp_path: Path) -> None:
    """After the first round, in which clients train alike, SCAFFOLD's variates are those without q-FedAvg."""
    kept = []
    for name, parts in (("a", (QFedAvg(2.0), Scaffold())), ("b", (Scaffold(),))):
        job = job_of(tmp_path / name, *parts)
        trained(job, 1)
        kept.append([job.store.load(client, before=2)["scaffold/c"] for client in range(len(job.federation))])
    assert all(torch.equal(one, other) for one, other in zip(*kept, strict=True))


def test_sums_are_enough_for_secure_aggregation() -> None:
    check_secure_aggregation(Settings(secure=True), make_method("qfedavg+scaffold", {}), 4)


def test_powers_beyond_all_numbers_end_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"^Round 1: not one of 3 updates could be used; [^\n]*\.$"):
        trained(job_of(tmp_path, QFedAvg(1e6)), 1)


def test_two_merges_are_refused() -> None:
    with pytest.raises(SettingError, match="'qfedavg' and 'fednova' both claim the merge slot; leave one out"):
        make_method("qfedavg+fednova", {})


@pytest.mark.parametrize("q", [-1, "fair", float("nan")])
def test_bad_q_is_refused_in_one_sentence(q: Any) -> None:
    with pytest.raises(SettingError, match=r"^qfedavg.q = [^\n]*; the default is 1.0\.$"):
        make_method("qfedavg", {"qfedavg": {"q": q}})
