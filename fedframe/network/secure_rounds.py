"""Secure aggregation as an engine sees it: masked replies come in, one reply that stands for all goes out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fedframe.core.message import LOST, Message
from fedframe.network.masks import MaskingGroup, RingVector, context_of, unmask
from fedframe.network.node_request import UNMASK
from fedframe.network.secure_sums import masked_words, reply_of_all, told_seeds

if TYPE_CHECKING:
    from fedframe.network.engine import NetworkEngine

WAIT = 600.0  # seconds for those who have sent a masked reply and are gone, unless patience says otherwise


def circle_of(engine: NetworkEngine, request: Message, units: Sequence[int]) -> MaskingGroup:
    """Those whose replies to an order are added up."""
    keys = {unit: engine.keys[unit] for unit in units}
    train = engine.job.federation.train
    scale = float(len(train.values) if engine.job.settings.weighting == "samples" else len(train))
    return MaskingGroup(keys, scale, context_of(engine.run_name, request, keys, scale))


def added_up(
    engine: NetworkEngine, request: Message, replies: Sequence[Message], circle: MaskingGroup
) -> Iterator[Message]:
    """From masked replies: those that are lost, and one that stands for all others."""
    job, masked = engine.job, dict[int, RingVector]()
    shapes = engine.expected[request.kind]
    size = 1 + sum(shape.numel() for shape in shapes.values())
    for reply in replies:
        most = len(job.federation.train[reply.unit])
        words = masked_words(reply, size, most) if reply.kind != LOST else str(reply.numbers["reason"])
        if isinstance(words, str):
            yield Message.lost(request, reply.unit, words)
        else:
            masked[reply.unit] = words
    if len(masked) < job.fewest(len(replies)):  # fewer may not be unmasked, and no node would help with it
        for unit in masked:
            yield Message.lost(request, unit, "too few masked replies could be used to add them up")
        return
    told, silent = ask_streams(engine, request, replace(circle, alive=tuple(sorted(masked))))
    if silent:  # the others have told theirs for it too and will not tell them for fewer: the next round has new ones
        names = ", ".join(str(job.federation.names[client]) for client in silent)
        for unit in masked:
            yield Message.lost(request, unit, f"{names} sent a masked reply and did not tell its masks, or too late")
        return
    engine.summed = sorted(masked)
    samples = [int(reply.numbers["samples"]) for reply in replies if reply.unit in masked]
    total = reply_of_all(job, request, unmask(masked, told), samples, circle.scale, shapes)
    yield replace(total, numbers={**total.numbers, "bytes": sum(words.nbytes for words in masked.values())})


def ask_streams(
    engine: NetworkEngine, request: Message, circle: MaskingGroup
) -> tuple[dict[int, dict[str, bytes]], list[int]]:
    """What masks were made of, from all whose masked replies are here, and who did not tell it, or too late."""
    gone = [client for client in circle.keys if client not in circle.alive]
    told: dict[int, dict[str, bytes]] = {}
    asked, seconds = {UNMASK: circle.alive}, engine.job.settings.patience or WAIT
    found, _ = engine.fetch(Message(UNMASK, request.round), asked, len(circle.alive), circle, seconds)
    for (_, client), reply in found.items():
        seeds = told_seeds(reply, gone)
        if seeds is not None:
            told[client] = seeds
    return told, [client for client in circle.alive if client not in told]
