"""FedLC: the calibrated softmax against its formula; missing classes leave it, and only in rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import SettingError
from fedframe.methods.parts.fedlc import FedLC
from fedframe.methods.recipes import make_method
from tests.helpers import nothing
from tests.methods.plain import plain_rounds, same
from tests.methods.toy import job_of, lacking, trained


def test_fedlc_with_tau_zero_is_fedavg_also_where_classes_are_missing(tmp_path: Path) -> None:
    ours = trained(job_of(tmp_path / "a", FedLC(tau=0.0), data=lacking()), 2)
    assert torch.equal(ours.model, trained(job_of(tmp_path / "b", data=lacking()), 2).model)


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["mask", "one"])
def test_fedlc_equals_a_plain_loop(tmp_path: Path, missing: Any) -> None:
    job = job_of(tmp_path, FedLC(tau=1.3, missing=missing), epochs=2, data=lacking())
    y_all = job.federation.source.train.y

    def loss(model: nn.Sequential, start: nn.Sequential, x: Tensor, y: Tensor, client: int) -> Tensor:
        own = y_all[job.federation.train[client]].tolist()
        total = torch.zeros((), dtype=torch.float64)
        for logits, label in zip(model(x), y.tolist(), strict=True):
            terms = {}
            for c in range(3):
                count = own.count(c) if missing == "mask" else max(1, own.count(c))
                if count:
                    terms[c] = torch.exp(logits[c] - 1.3 / count**0.25)
            total = total - torch.log(terms[label] / sum(terms.values())) / len(x)
        return total

    same(job, trained(job, 2), plain_rounds(job, 2, loss))


def test_vector_of_a_missing_class_is_not_moved(tmp_path: Path) -> None:
    job = job_of(tmp_path, FedLC(), data=lacking())
    engine = InlineEngine(job)
    before = job.template.head.get_parameter("weight").detach().clone()
    engine.runtime.train(Server(job, engine, nothing).build_request("train", 1), 0)
    moved = engine.runtime.model.head.get_parameter("weight").ne(before).any(1)
    assert moved.tolist() == [True, True, False]


def test_client_stage_has_plain_cross_entropy(tmp_path: Path) -> None:
    job = job_of(tmp_path, FedLC(), data=lacking())
    engine = InlineEngine(job)
    context = engine.runtime.begin(Server(job, engine, nothing).build_request("personalise", 2), 0)
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    assert torch.equal(FedLC().loss(logits, labels, context), F.cross_entropy(logits, labels))
    rows = FedLC().row_losses(logits[None], labels[None], [context])
    torch.testing.assert_close(rows.mean(), F.cross_entropy(logits, labels))


def test_negative_tau_is_refused_with_the_default() -> None:
    with pytest.raises(SettingError, match=r"fedlc.tau = -1.*the default is 0.5"):
        make_method("fedlc", {"fedlc": {"tau": -1}})
