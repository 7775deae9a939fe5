"""Which replies add up, and how they become words that can be masked and a reply that stands for all.

With `secure = true` a client sends one vector of masked words: its tensors by name, each multiplied by the client's
weight where the method weighs it, and its loss. The server gets the sum, and from it one reply that stands for all
clients: weighted tensors as their mean, plain ones as their sum.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import numpy as np
import torch

from fedframe.core.job import Job
from fedframe.core.message import Message, has_numbers
from fedframe.core.method import Method
from fedframe.core.part import ModelSize
from fedframe.errors import ProtocolError, SettingError
from fedframe.network.masks import BITS, Masker, MaskingGroup, RingVector, from_words, to_words
from fedframe.network.node_request import UNMASK

MASKED = "masked"
LOSS = 2.0**-20  # samples times this weighs a loss: sums over a million million samples still fit


def check_adds_up(method: Method) -> None:
    """Refuse parts that need single replies."""
    for part in method.parts:
        any_size = ModelSize(classes=2, dim=2, trainable=2)  # how uploads are aggregated does not depend on it
        single = any(upload.aggregate == "each" for upload in part.uploads(any_size).values())
        if single or part in method.parts_with("merger"):
            raise SettingError(
                f"secure = true lets the server see sums only, and {part.name!r} of {method.name!r} needs single "
                "clients' replies; leave one of them out, or use a method of sums, such as fedavg or scaffold."
            )


def how_summed(job: Job, kind: str, name: str) -> Literal["weighted", "plain"]:
    """Whether a tensor of a reply is weighted in the sum, or plain."""
    if name == "update":
        return "weighted"
    upload = job.uploads.get(name)
    if upload is None or upload.aggregate == "each":
        raise ProtocolError(f"{name} of a {kind} reply cannot be added up securely.")
    return "weighted" if upload.aggregate == "weighted_sum" else "plain"


def weight_of(job: Job, samples: int) -> float:
    """A client's weight in the mean."""
    return float(samples) if job.settings.weighting == "samples" else 1.0


def masked_reply(job: Job, run: str, reply: Message, circle: MaskingGroup, masker: Masker) -> Message:
    """What a client sends in place of its reply: words, and how many samples they are of."""
    samples, clients = int(reply.numbers["samples"]), len(circle.keys)
    factors = {"weighted": weight_of(job, samples) / circle.scale, "plain": 1.0}
    loss = torch.tensor([float(reply.numbers["loss"])], dtype=torch.float64)
    pieces = [to_words(loss, samples * LOSS, BITS["weighted"], clients)]
    for name, tensor in sorted(reply.tensors.items()):
        how = how_summed(job, reply.kind, name)
        pieces.append(to_words(tensor, factors[how], BITS[how], clients))
    words = masker.mask(np.concatenate(pieces), reply.unit, circle, f"{run}-{reply.kind}-{reply.round}")
    tensors = {MASKED: torch.from_numpy(words.view(np.int64))}
    return Message(reply.kind, reply.round, reply.unit, tensors, {"samples": samples})


def revealed_reply(request: Message, client: int, circle: MaskingGroup, masker: Masker, fewest: int) -> Message:
    """What a client tells of its streams."""
    seeds = masker.reveal(client, circle, fewest)
    tensors = {name: torch.frombuffer(bytearray(seed), dtype=torch.uint8) for name, seed in seeds.items()}
    return Message(UNMASK, request.round, client, tensors)


# -- the server's side -------------------------------------------------------------------------------------------------
def masked_words(reply: Message, size: int, most: int) -> RingVector | str:
    """The words of a masked reply, or why it is none."""
    if not has_numbers(reply):
        return "its update holds NaN or infinite values"
    if set(reply.tensors) != {MASKED} or set(reply.numbers) != {"samples"}:
        return "it is no masked reply"
    tensor, samples = reply.tensors[MASKED], reply.numbers["samples"]
    if tensor.dtype != torch.int64 or tensor.shape != (size,):
        return f"its words are {tensor.dtype} {tuple(tensor.shape)}, not int64 ({size},)"
    if not isinstance(samples, int) or not 1 <= samples <= most:
        return f"samples is {samples!r}, and the client has {most}"
    words: RingVector = tensor.numpy().view(np.uint64)
    return words


def told_seeds(reply: Message, gone: Collection[int]) -> dict[str, bytes] | None:
    """What a client has told of its streams; None if it is not what was asked for."""
    names = {"own", *(f"pair/{other}" for other in gone)}
    fine = set(reply.tensors) == names and all(
        t.dtype == torch.uint8 and t.shape == (32,) for t in reply.tensors.values()
    )
    return {name: tensor.numpy().tobytes() for name, tensor in reply.tensors.items()} if fine else None


def reply_of_all(
    job: Job,
    request: Message,
    words: RingVector,
    samples: Sequence[int],
    scale: float,
    shapes: Mapping[str, torch.Size],
) -> Message:
    """One reply that stands for all clients whose words were added up."""
    weight = sum(weight_of(job, each) for each in samples)
    loss = float(from_words(words[:1], BITS["weighted"])) / LOSS / sum(samples)
    tensors, start = {}, 1
    for name, shape in sorted(shapes.items()):
        how = how_summed(job, request.kind, name)
        total = from_words(words[start : start + shape.numel()], BITS[how]).reshape(shape)
        tensors[name] = total * (scale / weight) if how == "weighted" else total
        start += shape.numel()
    numbers = {"samples": sum(samples), "loss": loss, "clients": len(samples)}
    return Message(request.kind, request.round, -1, tensors, numbers)
