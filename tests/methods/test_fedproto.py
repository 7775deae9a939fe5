"""FedProto: prototypes by hand and in a plain loop, private models, prediction by classifier and by prototype."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedframe
from fedframe.core.aggregation import UploadSums
from fedframe.core.evaluation import score_round
from fedframe.core.message import Message
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import DataError, SettingError
from fedframe.methods.parts.alone import Local
from fedframe.methods.parts.fedproto import FedProto, prototypes
from fedframe.methods.parts.fine_tune import FineTune
from fedframe.methods.parts.frame_head import SimplexETF
from fedframe.methods.recipes import make_method
from tests.helpers import blobs, nothing
from tests.methods.plain import batches, plain_model
from tests.methods.toy import job_of, trained

MEANS, KNOWN = "extras.fedproto.means", "extras.fedproto.known"


def reply(means: list[list[float]], counts: list[float]) -> Message:
    tensors = {"fedproto/means": torch.tensor(means), "fedproto/counts": torch.tensor(counts)}
    return Message("train", 1, 0, tensors)


def test_two_clients_by_hand(tmp_path: Path) -> None:
    """Class 0: three samples around 1 and one around 5 make 2. Class 1: one client alone. Class 2: nobody."""
    job = job_of(tmp_path, FedProto())
    server = Server(job, InlineEngine(job), nothing)
    part, dim = FedProto(), job.template.dim
    for message in (
        reply([[1.0] * dim, [0.0] * dim, [0.0] * dim], [3, 0, 0]),
        reply([[5.0] * dim, [7.0] * dim, [0.0] * dim], [1, 2, 0]),
    ):
        server.uploads.add(message, 1.0)
    part.after_merge(server, 2)
    assert server.tensor(MEANS)[:, 0].tolist() == [2, 7, 0]
    assert server.tensor(KNOWN).tolist() == [1, 1, 0]
    server.uploads = UploadSums(job.uploads)
    server.uploads.add(reply([[0.0] * dim, [0.0] * dim, [9.0] * dim], [0, 0, 4]), 1.0)
    part.after_merge(server, 1)
    assert server.tensor(MEANS)[:, 0].tolist() == [2, 7, 9]  # a class that nobody had keeps its prototype
    assert server.tensor(KNOWN).tolist() == [1, 1, 1]


@pytest.mark.slow
def test_fedproto_equals_a_plain_loop(tmp_path: Path) -> None:
    data = blobs(clients=3, each=24)
    data["y_train"] = np.where(data["user_train"] == 0, data["y_train"] % 2, data["y_train"])  # client 0 lacks class 2
    job = job_of(tmp_path, FedProto(weight=0.6), data=data, epochs=2, lr=0.05, participation=0.67)
    server = trained(job, 4)
    assert job.roles.layout.size == 0  # nothing of the model is shared
    models = [plain_model(job) for _ in range(3)]
    means: dict[int, torch.Tensor] = {}
    for round in (1, 2, 3, 4):
        sums: dict[int, torch.Tensor] = {}
        counts: dict[int, int] = {}
        for client in server.select_clients(round):
            model = models[client]
            optimizer = torch.optim.SGD(model.parameters(), lr=job.settings.lr)
            for x, y in batches(job, round, client):
                z = model[0](x)
                penalty = torch.zeros((), dtype=torch.float64)
                for i, label in enumerate(y.tolist()):
                    if label in means:
                        penalty = penalty + ((z[i] - means[label]) ** 2).mean() / len(y)
                optimizer.zero_grad()
                (F.cross_entropy(model[1](z), y) + 0.6 * penalty).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            rows = job.federation.train[client]
            source = job.federation.source
            features = model[0](source.batch(source.train, rows).double()).detach()
            for feature, label in zip(features, source.train.y[rows].tolist(), strict=True):
                sums[label] = sums.get(label, torch.zeros(8, dtype=torch.float64)) + feature
                counts[label] = counts.get(label, 0) + 1
        means |= {label: total / counts[label] for label, total in sums.items()}
    for label in range(3):
        torch.testing.assert_close(server.tensor(MEANS)[label].double(), means[label], atol=1e-4, rtol=1e-3)
    for client in range(3):
        memory = job.store.load(client, before=5)
        weight = models[client].state_dict()["1.weight"]
        torch.testing.assert_close(memory["model/head.weight"].double(), weight, atol=3e-5, rtol=1e-4)


def test_without_weight_clients_train_alone(tmp_path: Path) -> None:
    job = job_of(tmp_path, FedProto(weight=0.0), data=blobs(clients=3, each=24))
    trained(job, 2)
    for client in range(3):
        model = plain_model(job)
        optimizer = torch.optim.SGD(model.parameters(), lr=job.settings.lr)
        for round in (1, 2):
            for x, y in batches(job, round, client):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        memory = job.store.load(client, before=3)
        weight = model.state_dict()["1.weight"]
        torch.testing.assert_close(memory["model/head.weight"].double(), weight, atol=3e-5, rtol=1e-4)


@pytest.mark.slow
def test_there_is_no_generic_score_but_a_personal_one(tmp_path: Path) -> None:
    server = trained(job_of(tmp_path, FedProto(), FineTune(epochs=0), data=blobs(), lr=0.2, epochs=3), 10)
    between, final = score_round(server), server.conclude(nothing)
    assert between.generic is None
    assert final.generic is None
    assert between.personal is not None
    assert between.personal > 0.8  # of 24 samples all are right: no single one decides
    assert final.personal == between.personal  # without fine-tuning the personal model is that of the last round


def test_nearest_prototype_predicts_if_asked_and_unknown_classes_never(tmp_path: Path) -> None:
    job = job_of(tmp_path, FedProto(predict_by="prototypes"))
    own = prototypes(job.template)
    own.means.copy_(torch.arange(3.0)[:, None].expand(3, job.template.dim))
    own.known.copy_(torch.tensor([1.0, 0.0, 1.0]))
    features = torch.tensor([[0.2], [0.9], [1.3]]).expand(3, job.template.dim)
    assert FedProto(predict_by="prototypes").predict(job.template, features).argmax(1).tolist() == [0, 0, 2]
    assert torch.equal(FedProto().predict(job.template, features), job.template.head(features))


@pytest.mark.slow
@pytest.mark.parametrize("predict_by", ["head", "prototypes"])
def test_run_is_saved_with_its_prototypes_and_has_only_personal_models(tmp_path: Path, predict_by: str) -> None:
    brief: dict[str, Any] = {"data": "digits", "clients": 3, "rounds": 3, "lr": 0.1, "workers": 1}
    done = fedframe.run(
        "fedproto", set={"fedproto": {"predict_by": predict_by}}, out=tmp_path / "run", progress=False, **brief
    )
    assert (done.scores["personal"]["final"] or 0) > 0.6
    model = done.personal(0).model
    assert prototypes(model).known.tolist() == [1.0] * 10
    assert isinstance(model.head, nn.Linear)
    with pytest.raises(DataError, match="has no shared model"):
        _ = done.model


@pytest.mark.parametrize("other", ["fedadam", "scaffold", "ccvr", "feddyn", "ratioloss"])
def test_what_works_on_shared_weights_is_refused_by_name(other: str) -> None:
    with pytest.raises(SettingError, match=rf"cannot be combined: .*{other}"):
        make_method(f"fedproto+{other}", {})


def test_frozen_classifier_is_everybodys(tmp_path: Path) -> None:
    job = job_of(tmp_path, FedProto(), SimplexETF())
    assert "head.weight" in job.roles.fixed
    assert {MEANS, KNOWN} <= {*job.roles.fixed}


def test_settings_that_cannot_be_are_refused_with_the_default() -> None:
    with pytest.raises(SettingError, match=r"fedproto.predict_by = 'knn'.*the default is head"):
        make_method("fedproto", {"fedproto": {"predict_by": "knn"}})


def test_fedproto_without_weight_is_local_bit_for_bit(tmp_path: Path) -> None:
    ours = job_of(tmp_path / "a", FedProto(weight=0.0), momentum=0.5)
    alone = job_of(tmp_path / "b", Local(), momentum=0.5)
    trained(ours, 3)
    trained(alone, 3)
    for client in range(3):
        mine, theirs = ours.store.load(client, before=4), alone.store.load(client, before=4)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
