"""Every question of `Part`, asked: toy parts that answer them all, through both engines."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedframe.core.client_context import ClientContext
from fedframe.core.job import Job
from fedframe.core.message import Message
from fedframe.core.method import Method, combine
from fedframe.core.model import Model
from fedframe.core.part import Merger, ModelSize, Part, State, Upload
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.engines.worker_pool import WorkerEngine
from fedframe.errors import SettingError
from fedframe.methods.parts import DEFAULTS
from fedframe.methods.parts.mean import Mean
from tests.helpers import make_job, nothing


@dataclass(frozen=True)
class Frozen(Part):
    """A frozen classifier that the server stage fits: the sum of the features of each class."""

    name: ClassVar[str] = "frozen"

    def build_head(self, model: Model) -> None:
        model.head = nn.Linear(model.dim, model.classes, bias=False)
        model.head.weight.requires_grad_(False)

    def statistics(self, context: ClientContext) -> dict[str, Tensor]:
        labels = context.job.federation.source.train.y[context.rows]
        return {"sums": F.one_hot(labels, context.model.classes).float().T @ context.embeddings()}

    def uploads(self, size: ModelSize) -> dict[str, Upload]:
        return {"sums": Upload([size.classes, size.dim], "sum", when="statistics")}

    def server_stage(self, server: Server, replies: Iterable[Message]) -> None:
        total = sum((reply.tensors["sums"].double() for reply in replies), torch.zeros((), dtype=torch.float64))
        server.set_tensor("head.weight", F.normalize(total).float())


@dataclass(frozen=True)
class Side(Part):
    """A private second classifier, trained on detached features; and a scale of the features."""

    name: ClassVar[str] = "side"

    def build(self, model: Model) -> None:
        model.extras["side"] = nn.Linear(model.dim, model.classes)

    def private(self, model: Model) -> Collection[str]:
        return [name for name in model.state_dict() if name.startswith("extras.side.")]

    def transform(self, model: Model, features: Tensor, context: ClientContext | None) -> Tensor:
        return features if context is None else 2 * features

    def penalty(self, context: ClientContext) -> Tensor:
        return F.cross_entropy(context.model.extras["side"](context.features.detach()), context.labels)


@dataclass(frozen=True)
class Drift(Part):
    """A correction from server state and private state, with the part's own tensors on the wire."""

    name: ClassVar[str] = "drift"
    memory: ClassVar[tuple[str, ...]] = ("drift/visits",)

    def begin(self, context: ClientContext) -> None:
        context.memory.setdefault("drift/visits", torch.zeros(1))
        context.memory["drift/visits"] += 1

    def correct(self, context: ClientContext) -> None:
        for parameter in context.named.values():
            if parameter.grad is not None:
                parameter.grad.add_(1e-3 * float(context.received["drift/level"]))

    def finish(self, context: ClientContext) -> None:
        context.reply["drift/visits"] = context.memory["drift/visits"].clone()

    def server_state(self, server: Server) -> dict[str, State]:
        return {"drift/level": State(torch.zeros(1), broadcast=True), "drift/visits": State(torch.zeros(1))}

    def uploads(self, size: ModelSize) -> dict[str, Upload]:
        return {"drift/visits": Upload([1], "each")}

    def after_merge(self, server: Server, clients: int) -> None:
        assert len(server.each("drift/visits")) == clients
        for visits in server.each("drift/visits"):
            server.state["drift/visits"] = server.state["drift/visits"] + visits
        server.state["drift/level"] = server.state["drift/level"] + 1


@dataclass(frozen=True)
class SeesAll(Part):
    """A merge rule that keeps every single update, as Nash bargaining must."""

    name: ClassVar[str] = "sees_all"

    def merger(self, server: Server) -> Merger:
        size = server.layout.trainable

        class Median:
            def __init__(self) -> None:
                self.updates: list[Tensor] = []

            def add(self, reply: Message, weight: float) -> None:
                self.updates.append(reply.tensors["update"][:size].clone())

            def finish(self) -> Tensor:
                return torch.stack(self.updates).median(0).values

        return Median()


@dataclass(frozen=True)
class OwnHead(Part):
    """A client stage that trains a weight that is frozen in rounds."""

    name: ClassVar[str] = "own_head"

    def personalise(self, context: ClientContext) -> None:
        context.lr = 0.1
        context.fit(1, only=lambda name: name == "head.weight")


def rich_job(folder: Path) -> Job:
    job = make_job(folder, lr=0.05)
    method = combine("rich", [Frozen(), Side(), Drift(), SeesAll(), OwnHead()], [default() for default in DEFAULTS])
    torch.manual_seed(0)
    model = method.build(job.template.backbone, job.template.dim, job.template.classes)
    return Job(job.settings, method, job.federation, model, folder)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_all_hooks_are_called_and_state_goes_where_it_belongs(tmp_path: Path, workers: int) -> None:
    job = rich_job(tmp_path)
    shared = {entry.name for entry in job.roles.layout.entries}
    assert "head.weight" not in shared
    assert not any(name.startswith("extras.side") for name in shared)
    engine = InlineEngine(job) if workers == 1 else WorkerEngine(job, workers, nothing)
    server = Server(job, engine)
    for round in (1, 2, 3):
        assert server.run_round(round, nothing).dropped == 0
        server.round = round
    assert float(server.state["drift/level"]) == 3
    assert float(server.state["drift/visits"]) == 4 * (1 + 2 + 3)  # every client counted its own visits
    memory = job.store.load(2, before=4)
    assert float(memory["drift/visits"]) == 3
    assert not torch.equal(memory["model/extras.side.weight"], job.template.state_dict()["extras.side.weight"])
    scores = server.conclude(nothing)
    assert scores.generic is not None
    assert scores.generic > 0.5  # class sums as a classifier, fitted by the server stage, on a barely trained net
    assert scores.personal_count == 4
    engine.close()


@pytest.mark.slow
def test_server_state_and_model_are_the_same_for_one_and_two_workers(tmp_path: Path) -> None:
    found = []
    for workers in (1, 2):
        job = rich_job(tmp_path / str(workers))
        engine = InlineEngine(job) if workers == 1 else WorkerEngine(job, workers, nothing)
        server = Server(job, engine)
        for round in (1, 2):
            server.run_round(round, nothing)
            server.round = round
        scores = server.conclude(nothing)
        found.append((server.tensors(), server.fixed_overrides, scores))
        engine.close()
    first, second = found
    assert first[2] == second[2]
    for one, two in zip(first[:2], second[:2], strict=True):
        assert isinstance(one, dict)
        assert isinstance(two, dict)
        assert all(torch.equal(one[name], two[name]) for name in one)


def test_frozen_weight_is_frozen_again_after_the_client_stage(tmp_path: Path) -> None:
    job = rich_job(tmp_path)
    engine = InlineEngine(job)
    server = Server(job, engine)
    list(engine.run(server.build_request("personalise", 1), [0]))
    assert not engine.runtime.model.head.weight.requires_grad
    list(engine.run(server.build_request("train", 1), [0]))
    assert torch.equal(engine.runtime.model.state_dict()["head.weight"], job.template.state_dict()["head.weight"])


def test_two_parts_that_claim_one_slot_are_refused_by_name() -> None:
    with pytest.raises(SettingError, match=r"'sees_all' and 'mean' both claim the merge slot"):
        combine("x", [SeesAll(), Mean()], [])


def test_hooks_that_nobody_overrides_are_not_called() -> None:
    method: Method = combine("plain", [], [default() for default in DEFAULTS])
    for hook in ("begin", "transform", "penalty", "correct", "step", "finish", "uploads", "server_state"):
        assert method.parts_with(hook) == ()
    assert [part.name for part in method.parts_with("loss")] == ["ce"]
    assert replace(method, name="y").parts == method.parts
