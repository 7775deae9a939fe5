"""Statistics that are asked for several times in a row, and parts that take over a slot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from fedframe.core import ClientContext, Message, Model, ModelSize, Part, Server, Upload
from fedframe.core.message import STAGE
from fedframe.core.method import combine
from fedframe.core.part import Slot
from fedframe.engines.inline import InlineEngine
from fedframe.errors import ProtocolError, RunError
from fedframe.methods.parts import DEFAULTS
from fedframe.network.node import check_request
from tests.helpers import nothing
from tests.methods.toy import job_of


@dataclass(frozen=True)
class TwoStages(Part):
    """Sums the samples, sets the bias to their number, and has it sent back times the client's own samples."""

    name: ClassVar[str] = "two_stages"
    confuses: bool = False

    def stages(self, model: Model) -> int:
        return 2

    def uploads(self, size: ModelSize) -> dict[str, Upload]:
        return {
            "two_stages/count": Upload([1], "sum", when="statistics"),
            "two_stages/product": Upload([2], "sum", when="statistics", stage=1),
        }

    def statistics(self, context: ClientContext) -> dict[str, Tensor]:
        own = float(len(context.rows))
        if context.stage == 0 or self.confuses:
            return {"two_stages/count": torch.tensor([own])}
        assert isinstance(context.model.head.bias, Tensor)
        return {"two_stages/product": torch.tensor([own, own * float(context.model.head.bias[0])])}

    def server_stage(self, server: Server, replies: Iterable[Message]) -> None:
        name = ("two_stages/count", "two_stages/product")[server.stage]
        total = sum(reply.tensors[name].double() for reply in replies)
        assert isinstance(total, Tensor)
        server.set_tensor("head.bias", torch.full((server.job.template.classes,), float(total[-1])))


def test_the_second_stage_sees_what_the_server_made_of_the_first(tmp_path: Path) -> None:
    job = job_of(tmp_path, TwoStages(), personal=False)
    server = Server(job, InlineEngine(job), nothing)
    server.conclude(nothing)
    samples = len(job.federation.train.values)
    assert float(server.tensor("head.bias")[0]) == samples**2
    assert job.stages == 2


def test_what_belongs_to_another_stage_is_refused(tmp_path: Path) -> None:
    job = job_of(tmp_path, TwoStages(confuses=True), personal=False)
    server = Server(job, InlineEngine(job), nothing)
    with pytest.raises(RunError, match=r"sends 'two_stages/count' without declaring it"):
        server.conclude(nothing)


def test_a_node_refuses_a_stage_that_the_method_does_not_have(tmp_path: Path) -> None:
    job = job_of(tmp_path, TwoStages())
    request = Server(job, InlineEngine(job), nothing).build_request("statistics", 1)
    for stage, fine in ((0, True), (1, True), (2, False), ("x", False), (-1, False)):
        asked = Message("statistics", 1, -1, request.tensors, {**request.numbers, STAGE: stage})
        if fine:
            check_request(job, asked)
        else:
            with pytest.raises(ProtocolError, match="Stage"):
                check_request(job, asked)


@dataclass(frozen=True)
class Stage(TwoStages):
    """Another server stage."""

    name: ClassVar[str] = "stage"


@dataclass(frozen=True)
class Greedy(TwoStages):
    """A server stage in place of any other."""

    name: ClassVar[str] = "greedy"
    takes_over: ClassVar[tuple[Slot, ...]] = ("server_stage",)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_part_that_takes_over_a_slot_replaces_what_only_filled_it(order: tuple[int, int]) -> None:
    parts = (Stage(), Greedy())
    method = combine("toy", [parts[i] for i in order], [default() for default in DEFAULTS])
    assert method.slot("server_stage").name == "greedy"
    assert "stage" not in {part.name for part in method.parts}
