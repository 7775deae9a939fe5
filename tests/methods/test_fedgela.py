"""FedGELA: scaled class vectors against their formula, in rounds and in a client's own model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedframe.core.job import personal_path
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import SettingError
from fedframe.methods.parts.fedgela import FedGELA
from fedframe.methods.parts.frame_head import SimplexETF
from fedframe.methods.recipes import make_method
from fedframe.util.files import read_tensors
from tests.helpers import blobs, nothing
from tests.methods.plain import plain_rounds, same
from tests.methods.toy import job_of, lacking, trained


def test_clients_that_have_every_class_equally_often_train_under_the_etf_itself(tmp_path: Path) -> None:
    data = blobs(clients=3, each=24)
    for client in range(3):
        data["y_train"][data["user_train"] == client] = np.arange(24) % 3
    settings = {"data": data, "local_test": 0, "momentum": 0.5}
    ours = trained(job_of(tmp_path / "a", SimplexETF(), FedGELA(), **settings), 2)
    assert torch.equal(ours.model, trained(job_of(tmp_path / "b", SimplexETF(), **settings), 2).model)


@pytest.mark.slow
def test_fedgela_equals_a_plain_loop(tmp_path: Path) -> None:
    job = job_of(tmp_path, SimplexETF(), FedGELA(), epochs=2, data=lacking())

    def loss(model: nn.Sequential, start: nn.Sequential, x: Tensor, y: Tensor, client: int) -> Tensor:
        own = job.federation.source.train.y[job.federation.train[client]].tolist()
        total = torch.zeros((), dtype=torch.float64)
        for h, label in zip(model[0](x), y.tolist(), strict=True):
            logits = [3 * own.count(c) / len(own) * (model[1].get_parameter("weight")[c] * h).sum() for c in range(3)]
            total = total - torch.log(torch.exp(logits[label]) / sum(torch.exp(each) for each in logits)) / len(x)
        return total

    same(job, trained(job, 2), plain_rounds(job, 2, loss))


@pytest.mark.parametrize("epochs", [0, 2])
def test_own_model_has_the_scaled_vectors_and_the_shared_one_the_etf(tmp_path: Path, epochs: int) -> None:
    job = job_of(tmp_path, SimplexETF(), FedGELA(epochs=epochs), data=lacking())
    engine = InlineEngine(job)
    server = Server(job, engine, nothing)
    engine.runtime.perform(server.build_request("personalise", 1), 0)
    own = read_tensors(personal_path(job.folder, 0))[0]
    counts = torch.bincount(job.federation.source.train.y[job.federation.train[0]], minlength=3)
    scaled = (3 * counts / counts.sum())[:, None] * job.template.head.get_parameter("weight").detach()
    torch.testing.assert_close(own["head.weight"], scaled)
    assert not own["head.weight"][2].any()  # a class that the client lacks
    assert server.tensor("head.weight")[2].any()
    assert any(name.startswith("backbone.") for name in own) == (epochs > 0)  # what differs is kept


def test_classifier_that_learns_is_refused() -> None:
    with pytest.raises(SettingError, match="both claim the head slot"):
        make_method("fedgela+linear", {})


def test_second_classifier_is_refused() -> None:
    with pytest.raises(SettingError, match="'auxiliary_heads'"):
        make_method("fedgela+auxiliary_heads", {})
