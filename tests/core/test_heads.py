"""Head stages for a stack of clients: the steps each would take alone, and what cannot be stacked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from fedframe.core import personal
from fedframe.core.job import Job, personal_path
from fedframe.core.part import Part
from fedframe.core.server import Server
from fedframe.core.stacked_heads import can_stack
from fedframe.engines.inline import InlineEngine
from fedframe.errors import RunError
from fedframe.methods.parts.cross_entropy import CrossEntropy
from fedframe.methods.parts.features import Normalise, Projection, Temperature
from fedframe.methods.parts.fedetf_stage import AlternatingAdaptation
from fedframe.methods.parts.fedloge import AuxiliaryHeads, GlobalRealignment, LocalRealignment
from fedframe.methods.parts.fine_tune import FineTune
from fedframe.methods.parts.frame_head import Orthonormal, SimplexETF, SparseETF
from fedframe.methods.parts.linear_head import LinearHead
from fedframe.methods.parts.losses import BalancedCrossEntropy, SquaredError
from fedframe.util.files import read_tensors
from tests.helpers import nothing
from tests.methods.toy import job_of

HEAD = FineTune(epochs=3, what="head")
METHODS: dict[str, Sequence[Part]] = {
    "linear": (HEAD,),
    "squared error": (Orthonormal(), Normalise(), SquaredError(), HEAD),
    "balanced": (BalancedCrossEntropy(), FineTune(epochs=3, what="head", lr=0.3)),
    "alternating": (SimplexETF(), Projection(dim=6), Normalise(), Temperature(), AlternatingAdaptation(iterations=2)),
    "realigned": (SparseETF(sparsity=0.2), AuxiliaryHeads(), GlobalRealignment(), LocalRealignment(plus_phi=True)),
}


def own_models(job: Job, groups: list[list[int]]) -> list[dict[str, torch.Tensor]]:
    """All clients' personal models, made in these groups."""
    job.__dict__["personal_groups"] = groups
    engine = InlineEngine(job)
    server = Server(job, engine, nothing)
    for _ in engine.run(server.build_request("personalise_group", 1), range(len(groups))):
        pass
    clients = sorted(client for group in groups for client in group)
    return [dict(read_tensors(personal_path(job.folder, client))[0]) for client in clients]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9, "weight_decay": 0.01}, {"momentum": 0.9, "nesterov": True}])
@pytest.mark.parametrize("name", METHODS)
def test_a_stack_takes_the_steps_that_each_client_would_take_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, settings: dict[str, Any]
) -> None:
    """The clients differ in size: 3 to 41 samples, so that some have no batch in a step, and last batches differ."""
    job = job_of(tmp_path, *METHODS[name], batch=5, **settings)
    assert can_stack(job, job.method.slot("client_stage").head_stages(job.method, job.template))
    together = own_models(job, [[2, 0, 1]])
    assert own_models(job, [[2, 0, 1]])[0].keys() == together[0].keys()
    monkeypatch.setattr(personal, "can_stack", lambda job, stages: False)
    alone = own_models(job, [[0], [1], [2]])
    for one, other in zip(alone, together, strict=True):
        assert one.keys() == other.keys()
        for key in one:
            torch.testing.assert_close(other[key], one[key], rtol=1e-4, atol=1e-6)
    start = job.template.state_dict()
    assert any(not torch.equal(start["head.weight"], own["head.weight"]) for own in together)


@dataclass(frozen=True)
class Doubled(CrossEntropy):
    """Another loss where the heads of several clients are trained at once."""

    name: ClassVar[str] = "doubled"

    def row_losses(self, logits: Tensor, labels: Tensor, contexts: Any) -> Tensor:
        return 2 * super().row_losses(logits, labels, contexts)


def test_losses_of_a_stack_that_are_others_are_refused(tmp_path: Path) -> None:
    job = job_of(tmp_path, Doubled(), HEAD, batch=5)
    with pytest.raises(RunError, match=r"Doubled\.row_losses has a mean of .* batch of client 0, where 'loss' gives "):
        own_models(job, [[2, 0, 1]])


@pytest.mark.slow
def test_same_group_same_bits(tmp_path: Path) -> None:
    first = own_models(job_of(tmp_path / "a", *METHODS["alternating"], batch=5), [[2, 0], [1]])
    again = own_models(job_of(tmp_path / "b", *METHODS["alternating"], batch=5), [[2, 0], [1]])
    for one, other in zip(first, again, strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(
    ("parts", "settings"),
    [((HEAD,), {"optimizer": "adam"}), ((HEAD,), {"clip": 1.0}), ((HEAD, "stranger"), {}), ((LinearHead(), HEAD), {})],
)
def test_what_a_stack_would_change_is_done_one_by_one(tmp_path: Path, parts: Any, settings: dict[str, Any]) -> None:
    class Stranger(Part):
        name = "stranger"

        def transform(self, model: Any, features: torch.Tensor, context: Any) -> torch.Tensor:
            return features - features.mean(0) if len(features) > 1 else features

    job = job_of(tmp_path, *(Stranger() if part == "stranger" else part for part in parts), **settings)
    stages = job.method.slot("client_stage").head_stages(job.method, job.template)
    assert can_stack(job, stages) == (not settings and "stranger" not in parts)
    assert [len(own) > 0 for own in own_models(job, [[0], [1], [2]])] == [True] * 3


def test_groups_depend_on_the_job_alone(tmp_path: Path) -> None:
    clients = list(range(100))
    assert [len(g) for g in personal.groups(job_of(tmp_path / "a", HEAD), clients)] == [25] * 4
    assert [len(g) for g in personal.groups(job_of(tmp_path / "b", FineTune()), clients)] == [1] * 100
