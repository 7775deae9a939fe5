"""FedDr+ against its formula, and the limit in which it is dot regression alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import SettingError
from fedframe.methods.parts.dot_regression import DotRegression
from fedframe.methods.parts.feddr_plus import FedDrPlus
from fedframe.methods.parts.frame_head import SimplexETF
from fedframe.methods.recipes import make_method
from tests.helpers import nothing
from tests.methods.plain import plain_rounds, same
from tests.methods.toy import job_of, lacking, trained


@pytest.mark.slow
def test_feddr_plus_with_beta_one_is_dot_regression(tmp_path: Path) -> None:
    ours = trained(job_of(tmp_path / "a", SimplexETF(), FedDrPlus(beta=1.0), momentum=0.5), 2)
    assert torch.equal(
        ours.model, trained(job_of(tmp_path / "b", SimplexETF(), DotRegression(), momentum=0.5), 2).model
    )


@pytest.mark.slow
def test_feddr_plus_equals_a_plain_loop(tmp_path: Path) -> None:
    job = job_of(tmp_path, SimplexETF(), FedDrPlus(beta=0.6), epochs=2, data=lacking())

    def loss(model: nn.Sequential, start: nn.Sequential, x: Tensor, y: Tensor, client: int) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for f, old, label in zip(model[0](x), start[0](x).detach(), y.tolist(), strict=True):
            v = model[1].get_parameter("weight")[label]
            cosine = (v * f).sum() / (v.square().sum().sqrt() * f.square().sum().sqrt())
            total = total + 0.6 * 0.5 * (cosine - 1) ** 2 + 0.4 * (f - old).square().sum() / len(f)
        return total / len(x)

    same(job, trained(job, 2), plain_rounds(job, 2, loss))


def test_client_stage_has_dot_regression_alone(tmp_path: Path) -> None:
    part = FedDrPlus(beta=0.3)
    job = job_of(tmp_path, SimplexETF(), part)
    engine = InlineEngine(job)
    context = engine.runtime.begin(Server(job, engine, nothing).build_request("personalise", 2), 0)
    context.embedding, labels = torch.randn(4, job.template.dim), torch.tensor([0, 1, 2, 0])
    logits = context.model.head(context.embedding)
    assert torch.equal(part.loss(logits, labels, context), DotRegression().loss(logits, labels, context))


def test_learned_classifier_is_refused() -> None:
    with pytest.raises(SettingError, match="both claim the head slot"):
        make_method("feddr_plus+linear", {})
