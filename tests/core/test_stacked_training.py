"""Clients that train together: each as if it were alone up to rounding, with the same bits whoever else there is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedframe
from fedframe.core.client_runtime import ClientRuntime
from fedframe.core.job import Job
from fedframe.core.message import Message
from fedframe.core.part import overrides, stacks
from fedframe.core.server import Server
from fedframe.core.stacked_net import StackedNet, layer_chain
from fedframe.core.stacked_training import MOST_TOGETHER, RowPlan, StackMember, padded, stacks_of
from fedframe.engines.inline import InlineEngine
from fedframe.engines.worker_pool import WorkerEngine
from fedframe.errors import RunError
from fedframe.methods.parts import PARTS
from fedframe.methods.parts.cross_entropy import CrossEntropy
from fedframe.models import build_net
from fedframe.settings import Settings
from fedframe.util.files import read_tensors
from tests.helpers import Recorder, blobs, make_job, nothing
from tests.methods.toy import job_of

ROUNDING = 2e-6  # the largest difference to the loop, in units of the largest number of an update


def uneven() -> dict[str, Any]:
    """Clients of 2 to 60 samples: less than a batch, whole batches, and more."""
    data = blobs(clients=1, each=200)
    data["user_train"] = np.repeat(np.arange(8), [60, 41, 32, 24, 17, 16, 8, 2])
    return data


def replies(job: Job, units: list[int], engine: type[Any] = InlineEngine, *more: Any) -> dict[int, Message]:
    runner = engine(job, *more)
    try:
        server = Server(job, runner, nothing)
        found = {}
        for reply in runner.run(server.build_request("train", 1), units):
            tensors = {name: tensor.clone() for name, tensor in reply.tensors.items()}
            found[reply.unit] = Message(reply.kind, reply.round, reply.unit, tensors, dict(reply.numbers))
        return found
    finally:
        runner.close()


def same_bits(first: Message, second: Message) -> bool:
    return first.numbers == second.numbers and all(
        torch.equal(tensor, second.tensors[name]) for name, tensor in first.tensors.items()
    )


# -- results -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("fedavg", {}),
        ("fedavg", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01, "epochs": 3}),
        ("fedavg", {"steps": 7, "class_weights": "balanced"}),
        ("fedavg", {"freeze": "1", "model": "mlp:8x6"}),
        ("fedavg", {"model": "raw"}),
        ("fednova", {"momentum": 0.5}),
        ("spherefed", {"lr": 0.1}),
        ("fedetf", {}),
        ("fedlc", {}),
        ("fedrs", {}),
        ("fedper", {}),
        ("fedexp", {}),
    ],
    ids=str,
)
def test_clients_together_do_what_each_does_alone_in_the_loop(
    method: str, given: dict[str, Any], tmp_path: Path
) -> None:
    common = {"method": method, "local_test": 0.0, **given}
    loop = make_job(tmp_path / "loop", uneven(), **common)
    stack = make_job(tmp_path / "stack", uneven(), **common, vectorise="auto")
    assert stack.trains_together, stack.obstacle
    assert not loop.trains_together
    expected, found = (replies(job, list(range(8))) for job in (loop, stack))
    for client, reply in expected.items():
        assert found[client].tensors.keys() == reply.tensors.keys()
        for name, tensor in reply.tensors.items():
            most = float(tensor.abs().max())
            assert most > 0, name
            assert float((found[client].tensors[name] - tensor).abs().max()) <= ROUNDING * most, (client, name)
        assert found[client].numbers == pytest.approx(reply.numbers, rel=1e-5)
        kept, other = (job.store.load(client, 2) for job in (loop, stack))
        assert kept.keys() == other.keys()
        assert all(torch.allclose(other[name], tensor, rtol=1e-4, atol=1e-6) for name, tensor in kept.items())


@pytest.mark.parametrize("model", ["mlp:8", "mlp:200x200", "raw"])
def test_a_client_has_the_same_bits_whoever_trains_with_it(model: str, tmp_path: Path) -> None:
    job = make_job(tmp_path, uneven(), model=model, local_test=0.0, vectorise="auto", momentum=0.9)
    together = replies(job, list(range(8)))
    runtime = ClientRuntime(job)
    request = Server(job, InlineEngine(job), nothing).build_request("train", 1)
    for client in range(8):
        assert same_bits(runtime.perform(request, client), together[client])
    some = replies(job, [6, 3, 4])
    assert list(some) == [6, 3, 4]
    assert all(same_bits(reply, together[client]) for client, reply in some.items())


class StopAfterTwo(Recorder):
    """Ctrl-C after the second round."""

    def round(self, record: Any) -> None:
        if record.round == 2:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_any_number_of_workers_and_a_resumed_run_give_the_same_bits(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", uneven(), method="fedper", local_test=0.0, vectorise="auto")
    alone = replies(job, list(range(8)))
    for workers in (2, 3):
        pooled = replies(job, list(range(8)), WorkerEngine, workers, nothing)
        assert all(same_bits(reply, alone[client]) for client, reply in pooled.items())
    given: dict[str, Any] = {"data": uneven(), "model": "mlp:8", "partition": "user", "vectorise": "auto"}
    given |= {"participation": 0.8, "personal": False, "rounds": 4}
    fedframe.run("fedper", workers=2, out=tmp_path / "whole", progress=False, **given)
    with pytest.raises(KeyboardInterrupt):
        fedframe.run("fedper", workers=1, out=tmp_path / "cut", progress=StopAfterTwo(), **given)
    fedframe.resume(tmp_path / "cut", data=given["data"], progress=False)
    first, second = (read_tensors(tmp_path / name / "model.safetensors")[0] for name in ("whole", "cut"))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_groups_are_those_of_the_round_and_of_nothing_else() -> None:
    for count in (1, 3, 10, 50, 500):
        groups = stacks_of(range(count))
        assert [client for group in groups for client in group] == list(range(count))
        assert max(map(len, groups)) <= MOST_TOGETHER
        assert max(map(len, groups)) - min(map(len, groups)) <= 1
    assert stacks_of([]) == []
    assert len(stacks_of(range(50))) == 4  # enough for as many workers


def test_padding_depends_on_the_client_alone() -> None:
    assert [padded(samples, 32) for samples in (1, 8, 9, 17, 32, 33, 500)] == [8, 8, 16, 32, 32, 32, 32]
    assert padded(500, 10) == padded(10, 10) == 10
    assert padded(3, 4) == 4


def test_batches_are_those_of_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(tmp_path, uneven(), local_test=0.0, epochs=2, batch=8)
    seen: list[list[int]] = []
    source = job.federation.source
    monkeypatch.setattr(
        "fedframe.core.client_loop.training_batches",
        lambda *given, **named: spied(seen, *given, **named),
    )
    runtime = ClientRuntime(job)
    request = Message("train", 1, -1, {"model": runtime.flat.clone()}, {"lr": 0.1})
    runtime.perform(request, 4)
    member = StackMember(runtime.begin(request, 4), {})
    plan = RowPlan(job, [member], 8)
    found = [rows[0, : int(size)].tolist() for rows, size in zip(plan.rows, plan.sizes, strict=True)]
    assert found == seen
    assert len(source.train.y) == 200


def spied(seen: list[list[int]], source: Any, rows: Tensor, size: int, generator: Any, *_: Any, **__: Any) -> Any:
    order = rows[torch.randperm(len(rows), generator=generator)]
    for chosen in order.split(size):  # type: ignore[no-untyped-call]
        seen.append(chosen.tolist())
        yield source.batch(source.train, chosen), source.train.y[chosen], chosen


# -- who trains together -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"method": "scaffold"}, "'correct' of 'scaffold'"),
        ({"method": "fedprox"}, "'correct' of 'prox'"),
        ({"method": "moon"}, "'penalty' of 'moon'"),
        ({"method": "fedsam"}, "'step' of 'fedsam'"),
        ({"method": "fedavg_etf"}, "'begin_epoch' of 'gmv'"),
        ({"method": "fedgrab"}, "round_losses"),
        ({"clip": 1.0}, "clip is 1.0, not None"),
        ({"optimizer": "adam"}, "optimizer is 'adam'"),
        ({"precision": "bf16"}, "precision is 'bf16'"),
        ({"keep_optimizer": True, "momentum": 0.5}, "keep_optimizer"),
        ({"model": "mlp:600x600"}, "weights"),
        ({"model": nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5))}, "no chain"),
    ],
    ids=str,
)
def test_runs_whose_clients_train_one_by_one_say_why(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    job = make_job(tmp_path, vectorise="auto", **given)
    assert not job.trains_together
    notes = [note for note in job.federation.notes if note.startswith("vectorise")]
    assert len(notes) == 1
    assert said in notes[0]
    assert not [note for note in make_job(tmp_path, **given).federation.notes if note.startswith("vectorise")]


def test_run_folders_of_before_are_off() -> None:
    """A setting that a folder lacks takes its default."""
    assert Settings().vectorise == "off"


@dataclass(frozen=True)
class OtherLoss(CrossEntropy):
    """A loss of its own; what it inherits for several clients speaks of another."""

    name: ClassVar[str] = "other_loss"

    def loss(self, logits: Tensor, labels: Tensor, context: Any) -> Tensor:
        return 2 * F.cross_entropy(logits, labels)


@dataclass(frozen=True)
class Shift(fedframe.Part):
    """A transform that does something else in rounds, although each sample is transformed by itself."""

    name: ClassVar[str] = "shift"

    @property
    def samplewise(self) -> bool:
        return True

    def transform(self, model: Any, features: Tensor, context: Any) -> Tensor:
        return features if context is None else features + 1


@pytest.mark.parametrize(("part", "said"), [(OtherLoss(), "round_losses"), (Shift(), "same_in_rounds")])
def test_a_part_that_does_not_say_so_has_its_own_loop(part: fedframe.Part, said: str, tmp_path: Path) -> None:
    job = job_of(tmp_path, part, vectorise="auto")
    assert said in job.obstacle
    assert not job.trains_together


LOSSES = [part for part in PARTS.values() if overrides(part, "round_losses")]


@pytest.mark.parametrize("part", LOSSES, ids=lambda part: part.name)
def test_losses_of_several_clients_are_those_of_each(part: type[Any], tmp_path: Path) -> None:
    assert stacks(part, "round_losses")
    job = job_of(tmp_path, part()) if part is not CrossEntropy else job_of(tmp_path)
    runtime = ClientRuntime(job)
    request = Server(job, InlineEngine(job), nothing).build_request("train", 1)
    contexts = [runtime.begin(request, client) for client in range(3)]
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 7, job.template.classes, generator=draw)
    counts = [context.class_counts for context in contexts]
    labels = torch.stack([torch.multinomial(count.float(), 7, replacement=True, generator=draw) for count in counts])
    loss = job.method.slot("loss")
    rows = loss.round_losses(logits, labels, contexts)
    for client, context in enumerate(contexts):
        own = loss.loss(logits[client], labels[client], context)
        assert float(rows[client].mean()) == pytest.approx(float(own), rel=1e-5)


@dataclass(frozen=True)
class Tripled(CrossEntropy):
    """Three times the loss where several clients train together."""

    name: ClassVar[str] = "tripled"

    def round_losses(self, logits: Tensor, labels: Tensor, contexts: Any) -> Tensor:
        return 3 * super().row_losses(logits, labels, contexts)


@dataclass(frozen=True)
class MeanAlready(CrossEntropy):
    """One number where one per sample is asked for: it would be weighted as if it were all of them."""

    name: ClassVar[str] = "mean_already"

    def round_losses(self, logits: Tensor, labels: Tensor, contexts: Any) -> Tensor:
        return super().row_losses(logits, labels, contexts).mean()


@dataclass(frozen=True)
class FirstOfAll(CrossEntropy):
    """Every client trains with what is the first client's own."""

    name: ClassVar[str] = "first_of_all"

    def loss(self, logits: Tensor, labels: Tensor, context: Any) -> Tensor:
        return F.cross_entropy(logits, labels) * (1 + int(context.client))

    def round_losses(self, logits: Tensor, labels: Tensor, contexts: Any) -> Tensor:
        return super().row_losses(logits, labels, contexts) * (1 + int(contexts[0].client))


@dataclass(frozen=True)
class Broken(CrossEntropy):
    """Fails where several clients train together."""

    name: ClassVar[str] = "broken"

    def round_losses(self, logits: Tensor, labels: Tensor, contexts: Any) -> Tensor:
        raise KeyError("x")


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("part", "said"),
    [
        (Tripled, r"Tripled\.round_losses has a mean of .* client \d, where 'loss' gives "),
        (MeanAlready, r"MeanAlready\.round_losses must return one loss per sample, .* returned shape \(\)\."),
        (FirstOfAll, r"FirstOfAll\.round_losses has a mean of .* over a batch of client \d, where"),
        (
            Broken,
            r"clients? [\d, ]+ together: KeyError: 'x' \(.*, line \d+, in Broken\.round_losses",
        ),
    ],
)
def test_losses_of_several_clients_that_are_others_are_refused(
    part: type[Any], said: str, workers: int, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match=said):
        fedframe.run(
            part(), vectorise="auto", clients=4, rounds=1, workers=workers, out=tmp_path / "run", progress=False
        )


# -- nets --------------------------------------------------------------------------------------------------------------
class Free(nn.Module):
    """A user's net with a way of its own."""

    def __init__(self, way: Callable[[Free, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.dim = nn.Linear(12, 6), nn.Linear(6, 6), 6
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x)


def hooked() -> nn.Module:
    net = nn.Sequential(nn.Linear(12, 6))
    net.register_forward_hook(lambda *given: given[2] + 1)
    return net


CHAINS: list[nn.Module] = [
    build_net("mlp:7x5", (3, 2, 2)),
    build_net("raw", (3, 2, 2)),
    nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 4, bias=False), nn.GELU()),
    Free(lambda net, x: F.leaky_relu(net.second(torch.relu(net.first(x.flatten(1)))), 0.3)),
    Free(lambda net, x: F.gelu(net.second(net.second(net.first(torch.flatten(x, 1)))), approximate="tanh")),
]


@pytest.mark.parametrize("net", CHAINS, ids=lambda net: type(net).__name__)
def test_stack_of_a_net_computes_what_each_copy_does(net: nn.Module, tmp_path: Path) -> None:
    chain = layer_chain(net)
    assert chain is not None
    model = fedframe.core.model.Model(net, 4, 3)
    model.head = nn.Linear(4, 3)
    draw = torch.Generator().manual_seed(1)
    stack, inputs = StackedNet(model, chain), torch.randn(3, 5, 3, 2, 2, generator=draw)
    own = [
        {name: torch.randn(tensor.shape, generator=draw) for name, tensor in model.named_parameters()} for _ in range(3)
    ]
    stack.load(model, own)
    leaves = stack.first(3, set(stack.names))
    features = stack.features(inputs)
    if not list(net.parameters()):
        assert torch.equal(features, torch.stack([net(each) for each in inputs]))
        return
    features.square().sum().backward()  # type: ignore[no-untyped-call]
    for client, tensors in enumerate(own):
        fedframe.core.model.load_tensors(model, tensors)
        model.zero_grad()
        expected = net(inputs[client])
        assert torch.allclose(features[client], expected, rtol=1e-5, atol=1e-5)
        expected.square().sum().backward()
        for name, leaf in zip(stack.names, leaves.shaped, strict=True):
            weight = model.get_parameter(name)
            if name.startswith("backbone."):
                assert weight.grad is not None
                assert leaf.grad is not None
                assert torch.allclose(leaf.grad[client], weight.grad, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "net",
    [
        build_net("convnet", (3, 12, 12)),
        hooked(),
        nn.Sequential(nn.Linear(12, 6), nn.BatchNorm1d(6)),
        nn.Sequential(nn.Linear(12, 6), nn.Dropout(0.1)),
        nn.Sequential(nn.Linear(12, 6), nn.Softmax(1)),
        Free(lambda net, x: net.first(x) + net.second(net.first(x))),
        Free(lambda net, x: net.first(x) if x.sum() > 0 else net.second(x)),
        Free(lambda net, x: torch.relu(net.first(x)) if net.training else net.first(x)),
        Free(lambda net, x: net.first(x) - net.first(x).mean(0)),
        Free(lambda net, x: F.dropout(net.first(x), 0.5)),
        Free(lambda net, x: net.first(x.flatten())),
    ],
    ids=lambda net: type(net).__name__,
)
def test_other_nets_are_not_stacked(net: nn.Module) -> None:
    assert layer_chain(net) is None
