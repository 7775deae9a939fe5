"""An organiser's run folder after its end: the nodes' data are elsewhere, their sums may be here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from fedframe.core.client_runtime import ClientRuntime
from fedframe.core.engine import DirectEvaluation, Engine
from fedframe.core.evaluation import Scores, score_generic
from fedframe.core.job import Job
from fedframe.core.message import Message
from fedframe.core.server import Server
from fedframe.data.federation import Federation
from fedframe.data.leaving import without_clients
from fedframe.data.spec import DataSchema
from fedframe.errors import RunError
from fedframe.network.node_data import federation_without_data
from fedframe.runs.federated import load_test_set
from fedframe.settings import Settings

COUNTS = "test_samples_by_class"  # of all members together, as they have told before the first round
ABSENT = "absent"  # of a member's record: it was not there yet, and none of its sums are in the model


def nodes_federation(
    schema: DataSchema, notes: dict[str, Any], settings: Settings, left: Collection[int] = ()
) -> Federation:
    """The nodes of a run as its organiser knows them, without those that have left or were never there."""
    members = notes["members"]
    train, tested = ([int(member[key]) for member in members] for key in ("train", "test"))
    test = load_test_set(schema, notes.get("test_data"), settings.label)
    names = [member["name"] for member in members]
    federation = federation_without_data(schema, names, train, tested, test)
    if counts := notes.get(COUNTS):
        federation = replace(federation, told_counts=torch.tensor(counts))
    absent = {number for number, member in enumerate(members) if member.get(ABSENT)}
    return without_clients(federation, absent | set(left), settings.seed)


class SharedModelOnly(DirectEvaluation):
    """Scores the shared model on the organiser's own test data: the clients' data are not available."""

    def final(self, server: Server, progress: Callable[[int, int], None]) -> Scores:
        """The generic score; without test data of the organiser's own there is none."""
        return score_generic(server)[0]


class NoNodes(Engine):
    """An engine without any clients: all that it does is to score the shared model."""

    evaluation = SharedModelOnly()

    def __init__(self, job: Job, command: str) -> None:
        self.runtime, self.command = ClientRuntime(job), command

    def run(self, request: Message, units: Sequence[int]) -> Iterator[Message]:
        """Score the shared model; whoever asks for more learns how to."""
        if request.kind != "score":
            raise RunError(
                "The sums of the other nodes were not kept, or depend on what all nodes have sent before: each of them "
                f"has to send its own again, which needs the nodes: {self.command}"
            )
        for unit in units:
            yield self.runtime.perform(request, unit)
