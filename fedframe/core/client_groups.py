"""Requests to several clients at once, and their replies as one message.

Where clients train together, a group of them is what an engine hands to a worker. So it does with clients that train
one by one and take no longer than the messages about them. The server sees single clients only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from fedframe.core.message import Message, Number
from fedframe.core.stacked_training import MOST_TOGETHER, MOST_WEIGHTS, stacks_of

if TYPE_CHECKING:
    from fedframe.core.job import Job

GROUPED = "train_group"  # the kind of a request that groups of clients train
MEMBERS = "members"  # in such a request: the clients of every group, as JSON
SHORT_WORK = 20_000_000  # samples times weights of a client's training: some milliseconds of a small net
MESSAGES = 6  # to every worker in a round, at least: with fewer, workers would wait for the last


def joins_replies(job: Job) -> bool:
    """Whether the replies of several clients travel as one message: with small nets, and clients of short work."""
    if job.trains_together:
        return True
    settings, sizes = job.settings, job.federation.train.sizes()
    samples = settings.epochs * int(sizes.max()) if len(sizes) else 0
    if settings.steps is not None:
        samples = settings.steps * settings.batch
    weights = job.roles.layout.size
    return weights <= MOST_WEIGHTS and weights * samples <= SHORT_WORK


def groups_of(job: Job, request: Message, units: Sequence[int], workers: int) -> list[list[int]] | None:
    """The clients of a request, in their order, as groups for a worker; None where it gets them one by one."""
    if request.kind != "train":
        return None
    if job.trains_together:
        return stacks_of(units)
    size = min(len(units) // (MESSAGES * workers), MOST_TOGETHER) if joins_replies(job) else 1
    return [list(units[start : start + size]) for start in range(0, len(units), size)] if size > 1 else None


def group_request(request: Message, groups: Sequence[Sequence[int]]) -> tuple[Message, range]:
    """The request to groups of clients, and the groups' numbers."""
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
