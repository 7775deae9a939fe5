"""What parts may rely on beside the slots: preparation, stages after training, tensors the server moves, memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedframe
from fedframe.core.client_context import ClientContext
from fedframe.core.evaluation import score_round
from fedframe.core.job import Job, personal_path
from fedframe.core.model import Model
from fedframe.core.part import ModelSize, Part, Upload
from fedframe.core.scratch import Key
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.engines.worker_pool import WorkerEngine
from fedframe.errors import RunError, SettingError
from fedframe.methods.parts.fine_tune import FineTune
from fedframe.util.files import read_tensors
from tests.core.test_slots import Drift, Frozen
from tests.helpers import blobs, make_job, nothing
from tests.methods.toy import job_of as toy_job
from tests.methods.toy import trained

OWNER = Key[int]("anchor/owner")


@dataclass(frozen=True)
class Anchor(Part):
    """Prepares in `begin`, pulls in `correct`: wrong if a client saw another client's preparation."""

    name: ClassVar[str] = "anchor"

    def begin(self, context: ClientContext) -> None:
        context.scratch[OWNER] = context.client

    def correct(self, context: ClientContext) -> None:
        assert context.scratch[OWNER] == context.client
        assert context.training, "corrections belong to rounds"
        for parameter in context.named.values():
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)


@dataclass(frozen=True)
class MovingHead(Frozen):
    """A frozen classifier that the server moves after every round, as FedNH does."""

    name: ClassVar[str] = "moving"

    def after_merge(self, server: Server, clients: int) -> None:
        noise = torch.randn(server.tensor("head.weight").shape, generator=server.generator("head"))
        server.set_tensor("head.weight", 0.9 * server.tensor("head.weight") + 0.1 * noise)


@dataclass(frozen=True)
class AllPrivate(Part):
    """Nothing is shared."""

    name: ClassVar[str] = "all_private"
    shares_a_model = False

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
    """Four clients of one size."""
    return toy_job(folder, *parts, data=blobs(), **{"lr": 0.05, "epochs": 2, **settings})


@pytest.mark.slow
def test_parts_prepare_for_every_client_and_corrections_rest_in_the_client_stage(tmp_path: Path) -> None:
    corrected = trained(job_of(tmp_path, Anchor()))
    assert not torch.equal(corrected.model, trained(job_of(tmp_path)).model)
    assert corrected.conclude(nothing).personal_count == 4


@pytest.mark.slow
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


def test_net_of_the_server_is_the_shared_model_with_what_the_server_has_set(tmp_path: Path) -> None:
    server = trained(job_of(tmp_path, MovingHead()), 1)
    source, rows = server.job.federation.source, torch.arange(5)
    inputs = source.batch(source.train, rows)
    runtime = server.engine.runtime  # type: ignore[attr-defined]
    for _ in range(2):  # also after another round, though the net is made once
        runtime.load(server.build_request("score", 1).tensors, {})
        expected = runtime.predict(source.train, rows, "five")
        torch.testing.assert_close(server.job.method.logits(server.net(), inputs), expected)
        server.run_round(2, nothing)


@pytest.mark.slow
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
        server.engine.runtime.begin(server.build_request("own", 13), client)  # type: ignore[attr-defined]
        samples, rows, labels = job.local_test(client)
        logits = server.engine.runtime.predict(samples, rows, client)  # type: ignore[attr-defined]
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
        def statistics(self, context: ClientContext) -> dict[str, Tensor]:
            found = super().statistics(context)
            return {"sums": found["sums"] * float("nan")} if context.client == 1 else found

    notes: list[str] = []
    job = job_of(tmp_path, Sick())
    server = Server(job, InlineEngine(job), notes.append)
    server.conclude(nothing)
    assert bool(torch.isfinite(server.tensor("head.weight")).all())
    assert "client 1 was refused" in notes[0]


def test_memory_that_a_part_does_not_declare_is_an_error(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Forgetful(Part):
        name: ClassVar[str] = "forgetful"

        def finish(self, context: ClientContext) -> None:
            context.memory["forgetful/x"] = torch.zeros(1)

    with pytest.raises(RunError, match=r"forgetful/x.*memory: ClassVar"):
        trained(job_of(tmp_path, Forgetful()))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_number_that_is_no_plain_number_is_an_error_that_names_it(tmp_path: Path, workers: int) -> None:
    @dataclass(frozen=True)
    class Odd(Part):
        name: ClassVar[str] = "odd"

        def finish(self, context: ClientContext) -> None:
            context.numbers["odd"] = np.float32(1)  # type: ignore[assignment]

        def uploads(self, size: ModelSize) -> dict[str, Upload]:
            return {"odd": Upload((), "number")}

    job = job_of(tmp_path, Odd())
    engine = InlineEngine(job) if workers == 1 else WorkerEngine(job, workers, nothing)
    with pytest.raises(RunError, match="must be a plain int or float and is of type float32"):
        Server(job, engine).run_round(1, nothing)
    engine.close()


def test_private_state_with_nan_is_not_kept(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Sour(Drift):
        def finish(self, context: ClientContext) -> None:
            super().finish(context)
            context.memory["drift/visits"] = context.memory["drift/visits"] * float("nan")

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
    model = engine.runtime.model.backbone
    assert isinstance(model, Tied)
    assert model.first.weight is model.second.weight


def test_personal_models_learn_although_the_schedule_has_come_to_its_end(tmp_path: Path) -> None:
    job = make_job(tmp_path, lr_schedule="cosine")
    server = Server(job, InlineEngine(job))
    assert float(server.build_request("train", 2).numbers["lr"]) < job.settings.lr
    assert float(server.build_request("personalise", 3).numbers["lr"]) == job.settings.lr


def test_fine_tuning_everything_moves_what_is_frozen_in_rounds(tmp_path: Path) -> None:
    for what, moves in (("all", False), ("head", True), ("everything", True)):
        job = job_of(tmp_path / what, MovingHead(), FineTune(epochs=1, what=what))  # type: ignore[arg-type]
        server = Server(job, InlineEngine(job))
        list(server.engine.run(server.build_request("personalise", 1), [0]))
        own, _ = read_tensors(personal_path(tmp_path / what, 0))
        assert ("head.weight" in own and not torch.equal(own["head.weight"], server.tensor("head.weight"))) == moves


@dataclass(frozen=True)
class Doubled(Part):
    """Only the first of the drawn train; a client's own model is the shared one times two."""

    name: ClassVar[str] = "doubled"

    def select_clients(self, server: Server, round: int, clients: Sequence[int]) -> Sequence[int]:
        assert len(clients) == 4
        return clients[:1]

    def load_personal(self, context: ClientContext) -> None:
        with torch.no_grad():
            context.runtime.flat.mul_(2)


def test_part_may_choose_who_trains(tmp_path: Path) -> None:
    job = job_of(tmp_path, Doubled())
    record = Server(job, InlineEngine(job), nothing).run_round(1, nothing)
    assert record.clients == 1
    assert record.bytes_down == 4 * job.roles.layout.size


def test_own_model_of_a_part_is_scored_between_rounds_and_goes_into_the_client_stage(tmp_path: Path) -> None:
    job = job_of(tmp_path, Doubled(), FineTune(epochs=0))
    server = trained(job, 1)
    assert score_round(server).personal is not None
    for kind in ("own", "personalise"):
        server.engine.runtime.perform(server.build_request(kind, 2), 1)  # type: ignore[attr-defined]
        assert torch.equal(server.engine.runtime.flat, 2 * server.model)  # type: ignore[attr-defined]


def test_model_that_a_part_cannot_work_with_is_refused_before_there_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(part: Part, model: Model, clients: int) -> None:
        raise SettingError(f"{model.classes} classes and {clients} clients")

    monkeypatch.setattr(FineTune, "check_model", refuse)
    with pytest.raises(SettingError, match="10 classes and 20 clients"):
        fedframe.run("fedavg", out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
