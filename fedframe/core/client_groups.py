"""Requests to several clients at once, and their replies as one message.

Where clients train together, a group of them is what an engine hands to a worker. The server sees single clients only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from fedframe.core.message import Message, Number
from fedframe.core.stacked_training import stacks_of

if TYPE_CHECKING:
    from fedframe.core.job import Job

GROUPED = "train_group"  # the kind of a request that groups of clients train
MEMBERS = "members"  # in such a request: the clients of every group, as JSON


def grouped(job: Job, request: Message) -> bool:
    """Whether groups of clients perform a request."""
    return request.kind == "train" and job.trains_together


def group_request(request: Message, units: Sequence[int]) -> tuple[Message, range]:
    """The request to groups of clients, and the groups' numbers."""
    groups = stacks_of(units)
    numbers = {**request.numbers, MEMBERS: json.dumps(groups)}
    return replace(request, kind=GROUPED, numbers=numbers), range(len(groups))


def single_request(request: Message, group: int) -> tuple[Message, list[int]]:
    """The request as one client would get it, and the clients of a group."""
    numbers = dict(request.numbers)
    members: list[int] = json.loads(str(numbers.pop(MEMBERS)))[group]
    return replace(request, kind="train", numbers=numbers), members


def join_replies(request: Message, group: int, replies: Sequence[Message]) -> Message:
    """The replies of a group as one message."""
    tensors = {f"{reply.unit}/{name}": each for reply in replies for name, each in reply.tensors.items()}
    numbers = {f"{reply.unit}/{name}": each for reply in replies for name, each in reply.numbers.items()}
    return Message(request.kind, request.round, group, tensors, numbers)


def split_replies(joined: Message, members: Sequence[int]) -> Iterator[Message]:
    """The single replies again, in the order of the clients."""
    tensors: dict[int, dict[str, Tensor]] = {client: {} for client in members}
    numbers: dict[int, dict[str, Number]] = {client: {} for client in members}
    for key, tensor in joined.tensors.items():
        unit, _, name = key.partition("/")
        tensors[int(unit)][name] = tensor
    for key, number in joined.numbers.items():
        unit, _, name = key.partition("/")
        numbers[int(unit)][name] = number
    for client in members:
        yield Message("train", joined.round, client, tensors[client], numbers[client])
