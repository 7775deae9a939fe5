"""Secure aggregation: which replies can be summed, how each becomes a masked vector, and one reply that stands for all.

With `secure = true` a client sends one masked vector: its tensors by name, each multiplied by the client's weight where
the method weighs it, and its loss. The server gets the sum, and from it one reply that stands for all clients: weighted
tensors as their mean, plain ones as their sum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from fedframe.core.job import Job
from fedframe.core.message import LOST, Message, has_numbers
from fedframe.core.method import Method
from fedframe.core.part import ModelSize, overrides
from fedframe.core.remote_evaluation import TALLIES
from fedframe.errors import ProtocolError, SettingError
from fedframe.network.masks import (
    FRACTION_BITS,
    SEED_BYTES,
    Masker,
    MaskingGroup,
    RingVector,
    from_fixed_point,
    mask_context,
    to_fixed_point,
    unmask,
)
from fedframe.network.node_request import UNMASK

if TYPE_CHECKING:
    from fedframe.network.engine import NetworkEngine

MASKED = "masked"
LOSS_SCALE = 2.0**-20  # samples times this weighs a loss: sums over a million million samples still fit
UNMASK_TIMEOUT = 600.0  # seconds for those who have sent a masked reply and are gone, unless patience says otherwise


def check_summable(method: Method) -> None:
    """Refuse parts that need single replies."""
    any_size = ModelSize(classes=2, dim=2, trainable=2)  # how uploads are aggregated does not depend on it
    for part in method.parts:
        single = any(upload.aggregate in ("each", "number") for upload in part.uploads(any_size).values())
        if single or overrides(type(part), "merger") or overrides(type(part), "before_merge"):
            raise SettingError(
                f"secure = true lets the server see sums only, and {part.name!r} of {method.name!r} needs single "
                "clients' replies; leave one of them out, or use a method of sums, such as fedavg or scaffold."
            )


def sum_weighting(job: Job, kind: str, name: str) -> Literal["weighted", "plain"]:
    """Whether a tensor of a reply is weighted in the sum, or plain."""
    if name == "update":
        return "weighted"
    if kind == "measure" and name in TALLIES:
        return "plain"
    upload = job.uploads.get(name)
    if upload is None or upload.aggregate in ("each", "number"):
        raise ProtocolError(f"{name} of a {kind} reply cannot be added up securely.")
    return "weighted" if upload.aggregate == "weighted_sum" else "plain"


def weight_of(job: Job, samples: int) -> float:
    """A client's weight in the mean."""
    return float(samples) if job.settings.weighting == "samples" else 1.0


# -- the node's side ---------------------------------------------------------------------------------------------------
def masked_reply(job: Job, run: str, reply: Message, group: MaskingGroup, masker: Masker, stage: int = 0) -> Message:
    """What a client sends in place of its reply: a masked vector, and its number of samples.

    Masks are revealed for one request of a round and kind; statistics may be asked for once in each of their stages.
    """
    samples, clients = int(reply.numbers["samples"]), len(group.keys)
    factors = {"weighted": weight_of(job, samples) / group.scale, "plain": 1.0}
    loss = torch.tensor([float(reply.numbers["loss"])], dtype=torch.float64)
    pieces = [to_fixed_point(loss, samples * LOSS_SCALE, FRACTION_BITS["weighted"], clients)]
    for name, tensor in sorted(reply.tensors.items()):
        weighting = sum_weighting(job, reply.kind, name)
        pieces.append(to_fixed_point(tensor, factors[weighting], FRACTION_BITS[weighting], clients))
    purpose = f"{run}-{reply.kind}-{reply.round}" + (f"-{stage}" if stage else "")
    vector = masker.mask(np.concatenate(pieces), reply.unit, group, purpose)
    tensors = {MASKED: torch.from_numpy(vector.view(np.int64))}
    return Message(reply.kind, reply.round, reply.unit, tensors, {"samples": samples})


def seeds_reply(request: Message, client: int, group: MaskingGroup, masker: Masker, min_clients: int) -> Message:
    """The seeds of its masks that a client reveals."""
    seeds = masker.reveal_seeds(client, group, min_clients)
    tensors = {name: torch.frombuffer(bytearray(seed), dtype=torch.uint8) for name, seed in seeds.items()}
    return Message(UNMASK, request.round, client, tensors)


# -- the server's side -------------------------------------------------------------------------------------------------
def masking_group_for(engine: NetworkEngine, request: Message, units: Sequence[int]) -> MaskingGroup:
    """The clients whose replies to a request are summed."""
    keys = {unit: engine.keys[unit] for unit in units}
    train = engine.job.federation.train
    scale = float(len(train.values) if engine.job.settings.weighting == "samples" else len(train))
    return MaskingGroup(keys, scale, mask_context(engine.run_name, request, keys, scale))


def sum_securely(
    engine: NetworkEngine, request: Message, replies: Sequence[Message], group: MaskingGroup
) -> Iterator[Message]:
    """From masked replies: those that are lost, and one that stands for all others."""
    job, masked = engine.job, dict[int, RingVector]()
    shapes = engine.expected[request.kind]
    size = 1 + sum(shape.numel() for shape in shapes.values())
    for reply in replies:
        max_samples = len(job.federation.train[reply.unit])
        vector = masked_vector(reply, size, max_samples) if reply.kind != LOST else str(reply.numbers["reason"])
        if isinstance(vector, str):
            yield Message.lost(request, reply.unit, vector)
        else:
            masked[reply.unit] = vector
    if len(masked) < job.fewest(len(replies)):  # fewer may not be unmasked, and no node would help with it
        for unit in masked:
            yield Message.lost(request, unit, "too few masked replies could be used to add them up")
        return
    seeds, silent = request_seeds(engine, request, replace(group, alive=tuple(sorted(masked))))
    if silent:  # the others have revealed theirs for it too and will not for fewer: the next round has new masks
        names = ", ".join(str(job.federation.names[client]) for client in silent)
        for unit in masked:
            yield Message.lost(request, unit, f"{names} sent a masked reply and did not reveal its masks, or too late")
        return
    engine.summed = sorted(masked)
    samples = [int(reply.numbers["samples"]) for reply in replies if reply.unit in masked]
    total = summed_reply(job, request, unmask(masked, seeds), samples, group.scale, shapes)
    yield replace(total, numbers={**total.numbers, "bytes": sum(vector.nbytes for vector in masked.values())})


def request_seeds(
    engine: NetworkEngine, request: Message, group: MaskingGroup
) -> tuple[dict[int, dict[str, bytes]], list[int]]:
    """The seeds of masks from all whose masked replies have arrived, and who did not reveal them, or too late."""
    gone = [client for client in group.keys if client not in group.alive]
    seeds: dict[int, dict[str, bytes]] = {}
    asked, timeout = {UNMASK: group.alive}, engine.job.settings.patience or UNMASK_TIMEOUT
    found, _ = engine.gather_replies(Message(UNMASK, request.round), asked, len(group.alive), group, timeout)
    for (_, client), reply in found.items():
        revealed = revealed_seeds(reply, gone)
        if revealed is not None:
            seeds[client] = revealed
    return seeds, [client for client in group.alive if client not in seeds]


def masked_vector(reply: Message, size: int, max_samples: int) -> RingVector | str:
    """The vector of a masked reply, or why it is none."""
    if not has_numbers(reply):
        return "its update holds NaN or infinite values"
    if set(reply.tensors) != {MASKED} or set(reply.numbers) != {"samples"}:
        return "it is no masked reply"
    tensor, samples = reply.tensors[MASKED], reply.numbers["samples"]
    if tensor.dtype != torch.int64 or tensor.shape != (size,):
        return f"its vector is {tensor.dtype} {tuple(tensor.shape)}, not int64 ({size},)"
    if not isinstance(samples, int) or not 1 <= samples <= max_samples:
        return f"samples is {samples!r}, and the client has {max_samples}"
    vector: RingVector = tensor.numpy().view(np.uint64)
    return vector


def revealed_seeds(reply: Message, gone: Collection[int]) -> dict[str, bytes] | None:
    """The seeds that a client has revealed; None if they are not those that were asked for."""
    names = {"own", *(f"pair/{other}" for other in gone)}
    fine = set(reply.tensors) == names and all(
        tensor.dtype == torch.uint8 and tensor.shape == (SEED_BYTES,) for tensor in reply.tensors.values()
    )
    return {name: tensor.numpy().tobytes() for name, tensor in reply.tensors.items()} if fine else None


def summed_reply(
    job: Job,
    request: Message,
    vector: RingVector,
    samples: Sequence[int],
    scale: float,
    shapes: Mapping[str, torch.Size],
) -> Message:
    """One reply that stands for all clients whose vectors were summed."""
    weight = sum(weight_of(job, each) for each in samples)
    loss = float(from_fixed_point(vector[:1], FRACTION_BITS["weighted"])) / LOSS_SCALE / sum(samples)
    tensors, start = {}, 1
    for name, shape in sorted(shapes.items()):
        weighting = sum_weighting(job, request.kind, name)
        total = from_fixed_point(vector[start : start + shape.numel()], FRACTION_BITS[weighting]).reshape(shape)
        tensors[name] = total * (scale / weight) if weighting == "weighted" else total
        start += shape.numel()
    numbers = {"samples": sum(samples), "loss": loss, "clients": len(samples)}
    return Message(request.kind, request.round, -1, tensors, numbers)
