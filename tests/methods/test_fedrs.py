"""FedRS: the restricted softmax against its formula; only missing classes are restricted, and only in rounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import SettingError
from fedframe.methods.parts.cross_entropy import CrossEntropy
from fedframe.methods.parts.fedrs import SCALES, FedRS
from fedframe.methods.recipes import make_method
from tests.helpers import nothing
from tests.methods.plain import average, batches, plain_model, same
from tests.methods.toy import job_of, lacking, trained


def test_fedrs_with_alpha_one_is_fedavg(tmp_path: Path) -> None:
    ours = trained(job_of(tmp_path / "a", FedRS(alpha=1.0), data=lacking()), 2)
    assert torch.equal(ours.model, trained(job_of(tmp_path / "b", data=lacking()), 2).model)


def test_client_that_has_all_classes_trains_as_in_fedavg(tmp_path: Path) -> None:
    data = lacking()
    updates = []
    for name, parts in (("a", (FedRS(alpha=0.1),)), ("b", ())):
        job = job_of(tmp_path / name, *parts, data=data)
        engine = InlineEngine(job)
        order = Server(job, engine, nothing).build_request("train", 1)
        updates.append([engine.runtime.train(order, client).tensors["update"].clone() for client in range(3)])
    ours, theirs = updates
    assert [torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)] == [False, False, True]


@pytest.mark.slow
def test_fedrs_equals_a_plain_loop(tmp_path: Path) -> None:
    job = job_of(tmp_path, FedRS(alpha=0.3), epochs=2, data=lacking())
    server = trained(job, 2)
    shared = plain_model(job)
    for round in (1, 2):
        locals_, weights = [], []
        for client in range(3):
            has = {int(c) for c in job.federation.source.train.y[job.federation.train[client]]}
            model = plain_model(job)
            model.load_state_dict(shared.state_dict())
            optimizer = torch.optim.SGD(model.parameters(), lr=job.settings.lr)
            for x, y in batches(job, round, client):
                logits = model(x)
                loss = torch.zeros((), dtype=torch.float64)
                for i in range(len(x)):
                    terms = [torch.exp((1.0 if c in has else 0.3) * logits[i, c]) for c in range(3)]
                    loss = loss - torch.log(terms[int(y[i])] / sum(terms)) / len(x)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            locals_.append(model)
            weights.append(float(len(job.federation.train[client])))
        average(locals_, weights, shared)
    same(job, server, shared)


def test_client_stage_has_plain_cross_entropy_alone_and_in_a_stack(tmp_path: Path) -> None:
    job = job_of(tmp_path, FedRS(alpha=0.1), data=lacking())
    engine = InlineEngine(job)
    context = engine.runtime.begin(Server(job, engine, nothing).build_request("personalise", 2), 0)
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    assert torch.equal(FedRS(alpha=0.1).loss(logits, labels, context), F.cross_entropy(logits, labels))
    rows = FedRS(alpha=0.1).row_losses(logits[None], labels[None], [context])
    assert torch.equal(rows, CrossEntropy().row_losses(logits[None], labels[None], [context]))


def test_alpha_above_one_is_refused_with_the_default() -> None:
    with pytest.raises(SettingError, match=r"fedrs.alpha = 2.*the default is 0.5"):
        make_method("fedrs", {"fedrs": {"alpha": 2}})


def test_class_of_a_single_sample_is_not_missing(tmp_path: Path) -> None:
    data = lacking()
    labels = np.zeros_like(data["y_train"])
    labels[0], labels[24:] = 1, 2  # the first client has one sample of class 1 and none of class 2
    job = job_of(tmp_path, FedRS(alpha=0.3), data={**data, "y_train": labels}, local_test=0)
    engine = InlineEngine(job)
    context = engine.runtime.begin(Server(job, engine, nothing).build_request("train", 1), 0)
    assert context.class_counts.tolist() == [23, 1, 0]
    torch.testing.assert_close(context.scratch[SCALES], torch.tensor([1.0, 1.0, 0.3]))
