"""Every question of `Part`, asked: toy parts that answer them all, through both engines."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedframe.core.evaluate import score_round
from fedframe.core.files import read_tensors
from fedframe.core.job import Job, personal_path
from fedframe.core.message import Message
from fedframe.core.method import Method, combine
from fedframe.core.model import Model
from fedframe.core.part import Merger, Part, Slot
from fedframe.core.server import Server
from fedframe.core.work import Work
from fedframe.engines.inline import InlineEngine
from fedframe.engines.workers import WorkerEngine
from fedframe.errors import RunError, SettingError
from fedframe.parts import DEFAULTS
from fedframe.parts.fine_tune import FineTune
from fedframe.parts.mean import Mean
from tests.helpers import make_job, nothing


@dataclass(frozen=True)
class Frozen(Part):
    """A frozen classifier that the server stage fits: the sum of the features of each class."""

    name: ClassVar[str] = "frozen"
    claims: ClassVar[frozenset[Slot]] = frozenset({"head", "server_stage"})

    def build(self, model: Model) -> None:
        model.head = nn.Linear(model.dim, model.classes, bias=False)
        model.head.weight.requires_grad_(False)

    def statistics(self, work: Work) -> dict[str, Tensor]:
        labels = work.job.federation.source.train.y[work.rows]
        return {"sums": F.one_hot(labels, work.model.classes).float().T @ work.embeddings()}

    def statistics_shapes(self, server: Server) -> dict[str, torch.Size]:
        return {"sums": torch.Size([server.job.template.classes, server.job.template.dim])}

    def conclude(self, server: Server, replies: Iterable[Message]) -> None:
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

    def transform(self, model: Model, features: Tensor, work: Work | None) -> Tensor:
        return features if work is None else 2 * features

    def penalty(self, work: Work) -> Tensor:
        return F.cross_entropy(work.model.extras["side"](work.features.detach()), work.labels)


@dataclass(frozen=True)
class Drift(Part):
    """A correction from server state and private state, with the part's own tensors on the wire."""

    name: ClassVar[str] = "drift"
    remembers: ClassVar[bool] = True

    def begin(self, work: Work) -> None:
        work.memory.setdefault("drift/visits", torch.zeros(1))
        work.memory["drift/visits"] += 1

    def correct(self, work: Work) -> None:
        for parameter in work.named.values():
            if parameter.grad is not None:
                parameter.grad.add_(1e-3 * float(work.received["drift/level"]))

    def finish(self, work: Work) -> None:
        work.reply["drift/visits"] = work.memory["drift/visits"].clone()

    def server_state(self, server: Server) -> dict[str, Tensor]:
        return {"drift/level": torch.zeros(1), "drift/visits": torch.zeros(1)}

    def uploads(self, server: Server) -> dict[str, torch.Size]:
        return {"drift/visits": torch.Size([1])}

    def broadcast(self, server: Server) -> dict[str, Tensor]:
        return {"drift/level": server.state["drift/level"]}

    def absorb(self, server: Server, reply: Message, weight: float) -> None:
        server.scratch["seen"] = server.scratch.get("seen", 0) + 1
        server.state["drift/visits"] = server.state["drift/visits"] + reply.tensors["drift/visits"]

    def after_merge(self, server: Server, clients: int) -> None:
        assert server.scratch["seen"] == clients
        server.state["drift/level"] = server.state["drift/level"] + 1


@dataclass(frozen=True)
class SeesAll(Part):
    """A merge rule that keeps every single update, as Nash bargaining must."""

    name: ClassVar[str] = "sees_all"
    claims: ClassVar[frozenset[Slot]] = frozenset({"merge"})

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
    claims: ClassVar[frozenset[Slot]] = frozenset({"client_stage"})

    def personalise(self, work: Work) -> None:
        work.lr = 0.1
        work.fit(1, only=lambda name: name == "head.weight")


def rich_job(folder: Path) -> Job:
    job = make_job(folder, lr=0.05)
    method = combine("rich", [Frozen(), Side(), Drift(), SeesAll(), OwnHead()], [default() for default in DEFAULTS])
    torch.manual_seed(0)
    model = method.build(job.template.backbone, job.template.dim, job.template.classes)
    return Job(job.settings, method, job.federation, model, folder)


@pytest.mark.parametrize("workers", [1, 2])
def test_all_questions_are_asked_and_state_goes_where_it_belongs(tmp_path: Path, workers: int) -> None:
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
        found.append((server.tensors(), server.replaced, scores))
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
    list(engine.run(server.order("personalise", 1), [0]))
    assert not engine.site.model.head.weight.requires_grad
    list(engine.run(server.order("train", 1), [0]))
    assert torch.equal(engine.site.model.state_dict()["head.weight"], job.template.state_dict()["head.weight"])


def test_two_parts_that_claim_one_slot_are_refused_by_name() -> None:
    with pytest.raises(SettingError, match=r"'sees_all' and 'mean' both claim the merge slot"):
        combine("x", [SeesAll(), Mean()], [])


def test_hooks_nobody_answers_are_not_called() -> None:
    method: Method = combine("plain", [], [default() for default in DEFAULTS])
    for question in ("begin", "transform", "penalty", "correct", "after_step", "finish", "absorb", "broadcast"):
        assert method.answering(question) == ()
    assert [part.name for part in method.answering("loss")] == ["ce"]
    assert replace(method, name="y").parts == method.parts


@dataclass(frozen=True)
class Anchor(Part):
    """Prepares in `begin`, pulls in `correct`: wrong if a client saw another client's preparation."""

    name: ClassVar[str] = "anchor"

    def begin(self, work: Work) -> None:
        work.scratch["anchor"] = work.client

    def correct(self, work: Work) -> None:
        assert work.scratch["anchor"] == work.client
        assert work.training, "corrections belong to rounds"
        for parameter in work.named.values():
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)


@dataclass(frozen=True)
class MovingHead(Frozen):
    """A frozen classifier that the server moves after every round, as FedNH does."""

    name: ClassVar[str] = "moving"
    claims: ClassVar[frozenset[Slot]] = frozenset({"head"})

    def after_merge(self, server: Server, clients: int) -> None:
        noise = torch.randn(server.tensor("head.weight").shape, generator=server.generator("head"))
        server.set_tensor("head.weight", 0.9 * server.tensor("head.weight") + 0.1 * noise)


@dataclass(frozen=True)
class AllPrivate(Part):
    """Nothing is shared."""

    name: ClassVar[str] = "all_private"
    shares_a_model: ClassVar[bool] = False

    def private(self, model: Model) -> Collection[str]:
        return list(model.state_dict())


@dataclass(frozen=True)
class OtherHead(Part):
    """Predicts with a second classifier."""

    name: ClassVar[str] = "other_head"

    def build(self, model: Model) -> None:
        model.extras["other"] = nn.Linear(model.dim, model.classes)

    def predict(self, model: Model, features: Tensor) -> Tensor:
        logits: Tensor = model.extras["other"](features)
        return logits


def job_of(folder: Path, *parts: Part, **settings: Any) -> Job:
    job = make_job(folder, lr=0.05, **settings)
    method = combine("toy", list(parts), [default() for default in DEFAULTS])
    torch.manual_seed(0)
    model = method.build(job.template.backbone, job.template.dim, job.template.classes)
    return Job(job.settings, method, job.federation, model, folder)


def trained(job: Job, rounds: int = 2) -> Server:
    server = Server(job, InlineEngine(job), nothing)
    for round in range(1, rounds + 1):
        server.run_round(round, nothing)
        server.round = round
    return server


def test_parts_prepare_for_every_client_and_corrections_rest_in_the_client_stage(tmp_path: Path) -> None:
    corrected = trained(job_of(tmp_path, Anchor()))
    assert not torch.equal(corrected.model, trained(job_of(tmp_path)).model)
    assert corrected.conclude(nothing).personal_count == 4


def test_tensor_that_the_server_moves_survives_a_resume(tmp_path: Path) -> None:
    whole = trained(job_of(tmp_path, MovingHead()), 3)
    half = trained(job_of(tmp_path, MovingHead()), 1)
    other = Server(job_of(tmp_path, MovingHead()), InlineEngine(half.job), nothing)
    other.restore(half.tensors(), 1)
    for round in (2, 3):
        other.run_round(round, nothing)
        other.round = round
    assert torch.equal(other.model, whole.model)
    assert torch.equal(other.tensor("head.weight"), whole.tensor("head.weight"))
    assert not torch.equal(whole.tensor("head.weight"), whole.job.template.state_dict()["head.weight"])


def test_method_without_a_shared_model_has_no_generic_score_but_a_personal_one_each_round(tmp_path: Path) -> None:
    job = job_of(tmp_path, AllPrivate())
    assert job.roles.layout.size == 0
    server = trained(job, 12)
    scores = score_round(server)
    assert scores.generic is None
    assert scores.client is None
    assert scores.personal is not None
    assert scores.personal > 0.5
    by_hand = []
    for client in range(4):
        server.engine.site.begin(server.order("own", 13), client)  # type: ignore[attr-defined]
        samples, rows, labels = job.local_test(client)
        logits = server.engine.site.predict([job.federation.source.batch(samples, rows)])  # type: ignore[attr-defined]
        by_hand.append(float((logits.argmax(1) == labels).double().mean()))
    assert scores.personal == pytest.approx(sum(by_hand) / 4)


def test_prediction_may_use_another_classifier(tmp_path: Path) -> None:
    job = job_of(tmp_path, OtherHead())
    inputs = job.federation.source.batch(job.federation.source.train, torch.arange(3))
    expected = job.template.extras["other"](job.template.backbone(inputs))
    assert torch.equal(job.method.logits(job.template, inputs), expected)


def test_statistics_with_nan_are_refused(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Sick(Frozen):
        def statistics(self, work: Work) -> dict[str, Tensor]:
            found = super().statistics(work)
            return {"sums": found["sums"] * float("nan")} if work.client == 1 else found

    notes: list[str] = []
    job = job_of(tmp_path, Sick())
    server = Server(job, InlineEngine(job), notes.append)
    server.conclude(nothing)
    assert bool(torch.isfinite(server.tensor("head.weight")).all())
    assert "client 1 was refused" in notes[0]


def test_memory_of_a_part_that_does_not_say_it_remembers_is_an_error(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Forgetful(Part):
        name: ClassVar[str] = "forgetful"

        def finish(self, work: Work) -> None:
            work.memory["forgetful/x"] = torch.zeros(1)

    with pytest.raises(RunError, match=r"forgetful/x.*remembers = True"):
        trained(job_of(tmp_path, Forgetful()))


@pytest.mark.parametrize("workers", [1, 2])
def test_number_that_is_no_plain_number_is_an_error_that_names_it(tmp_path: Path, workers: int) -> None:
    @dataclass(frozen=True)
    class Odd(Part):
        name: ClassVar[str] = "odd"

        def finish(self, work: Work) -> None:
            work.numbers["odd"] = np.float32(1)  # type: ignore[assignment]

    job = job_of(tmp_path, Odd())
    engine = InlineEngine(job) if workers == 1 else WorkerEngine(job, workers, nothing)
    with pytest.raises(RunError, match="'odd' of a reply is a float32"):
        Server(job, engine).run_round(1, nothing)
    engine.close()


def test_private_state_with_nan_is_not_kept(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Sour(Drift):
        def finish(self, work: Work) -> None:
            super().finish(work)
            work.memory["drift/visits"] = work.memory["drift/visits"] * float("nan")

    server = trained(job_of(tmp_path, Sour()), 1)
    assert server.job.store.load(0, before=2) == {}


def test_net_with_tied_weights_trains_and_is_saved(tmp_path: Path) -> None:
    class Tied(nn.Module):
        dim = 5

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.second(self.first(x).relu())
            return result

    job = make_job(tmp_path, None, Tied())
    engine = InlineEngine(job)
    server = Server(job, engine)
    server.run_round(1, nothing)
    server.round = 1
    assert server.conclude(nothing).personal_count == 4
    model = engine.site.model.backbone
    assert isinstance(model, Tied)
    assert model.first.weight is model.second.weight


def test_personal_models_learn_although_the_schedule_has_come_to_its_end(tmp_path: Path) -> None:
    job = make_job(tmp_path, lr_schedule="cosine")
    server = Server(job, InlineEngine(job))
    assert float(server.order("train", 2).numbers["lr"]) < job.settings.lr
    assert float(server.order("personalise", 3).numbers["lr"]) == job.settings.lr


def test_fine_tuning_everything_moves_what_is_frozen_in_rounds(tmp_path: Path) -> None:
    for what, moves in (("all", False), ("head", True), ("everything", True)):
        job = job_of(tmp_path / what, MovingHead(), FineTune(epochs=1, what=what))  # type: ignore[arg-type]
        server = Server(job, InlineEngine(job))
        list(server.engine.run(server.order("personalise", 1), [0]))
        own, _ = read_tensors(personal_path(tmp_path / what, 0))
        assert ("head.weight" in own and not torch.equal(own["head.weight"], server.tensor("head.weight"))) == moves
