"""How many vectors of the model's size a server holds while it merges, counted and not timed."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedframe.core import aggregation
from fedframe.core import server as server_module
from fedframe.core.engine import Engine
from fedframe.core.job import Job
from fedframe.core.kept_updates import KeptUpdates
from fedframe.core.message import Message
from fedframe.core.reply_limits import WINDOW
from fedframe.core.server import Server
from tests.helpers import blobs, make_job, nothing

CLIENTS = WINDOW + 4  # in the first round, more than are held back


class LargeTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The most memory that new large tensors took at once, looked up whenever another one has been made."""

    def __init__(self, least: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.least, self.most = least, 0

    def __enter__(self) -> Any:
        gc.collect()
        gc.freeze()  # what is there by now is not looked at again
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        gc.unfreeze()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor) and found.nbytes >= self.least:
            self.most = max(self.most, self.held())
        return found

    def held(self) -> int:
        """Bytes of all new tensors that are large; views share the memory of one."""
        tensors = [each for each in gc.get_objects() if type(each) is Tensor]
        storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
        return sum(size for size in storages.values() if size >= self.least)


class Lender(Engine):
    """Lends the same memory for every client's update, as workers do; scores nothing."""

    evaluation: Any = SimpleNamespace(after_round=nothing, late=nothing)

    def __init__(self, job: Job) -> None:
        self.update = torch.zeros(job.roles.layout.size)

    def run(self, request: Message, units: Sequence[int]) -> Iterator[Message]:
        for unit in units:
            self.update.fill_(0.01 * (unit + 1))
            yield Message(
                "train", request.round, unit, {"update": self.update}, {"samples": 18, "steps": 3, "loss": 1.0}
            )


def test_merging_holds_the_sum_in_float64_and_the_new_model_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (aggregation, server_module):
        monkeypatch.setattr(module, "BLOCK", 1000)
    monkeypatch.setattr(KeptUpdates.__init__, "__defaults__", (0,))  # as if each were too large for the memory
    job = make_job(tmp_path, blobs(clients=CLIENTS), "mlp:200x100")
    server = Server(job, Lender(job))
    model = 4 * job.roles.layout.size
    with LargeTensors(model // 2) as tensors:
        server.train(nothing, nothing)
    # A float64 sum is as large as two models, and after the first round the model itself is new. One update at a time
    # comes back from the file in the first round.
    assert 3 * model <= tensors.most <= (2 + 1 + 1) * model


def test_a_running_mean_takes_its_sum_and_nothing_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregation, "BLOCK", 1000)  # else the model is smaller than the block that is widened
    with LargeTensors(4 * 30_000) as tensors:
        mean = aggregation.RunningMean(60_000)
        for _ in range(3):
            mean.add(torch.ones(60_000), 1.0)
        step = mean.into_mean()
    assert tensors.most <= 3 * 4 * 60_000  # the sum, and the update that is added
    assert torch.equal(step, torch.ones(60_000, dtype=torch.float64))


def test_the_mean_in_the_memory_of_the_sum_has_the_same_bits() -> None:
    means = [aggregation.RunningMean(1000), aggregation.RunningMean(1000)]
    for seed in range(5):
        vector = torch.randn(1000, generator=torch.Generator().manual_seed(seed))
        for mean in means:
            mean.add(vector, 0.1 + seed)
    assert torch.equal(means[0].mean(), means[1].into_mean())


def test_replies_that_wait_in_a_file_are_merged_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = []
    for most in (1 << 30, 0):
        monkeypatch.setattr(KeptUpdates.__init__, "__defaults__", (most,))
        job = make_job(tmp_path / str(most), blobs(clients=CLIENTS), "mlp:8")
        server = Server(job, Lender(job))
        server.run_round(1, nothing)
        models.append(server.model)
    assert torch.equal(*models)
