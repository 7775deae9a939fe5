"""Secure aggregation: which replies can be summed, how each becomes a masked vector, and one reply that stands for all.

With `secure = true` a client sends one masked vector: its tensors by name, each multiplied by the client's weight where
the method weighs it, its loss, and how the models did on its own test data, as numbers that can be summed. The server
gets the sum, and from it one reply that stands for all clients: weighted tensors as their mean, plain ones as sums.

Whether a client's training gave NaN, or numbers too large to be added up, depends on its data, too: with models made
for it that would tell a bit in every round. So it is in the masked vector, as a one that is summed, and the client's
tensors are zeros: no change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from fedframe.core.imbalance import CLASSES
from fedframe.core.job import Job, agreeing
from fedframe.core.message import ALL, DIVERGED, LOST, Message, has_numbers
from fedframe.core.privacy import release_of, withholds_figures
from fedframe.core.remote_evaluation import SUMMED_COUNTS, TALLIES, scored_with
from fedframe.errors import DivergedError, ProtocolError
from fedframe.network.masker import Masker, block_size, others_of
from fedframe.network.masks import (
    FRACTION_BITS,
    SEED_BYTES,
    MaskingGroup,
    RingVector,
    from_fixed_point,
    mask_context,
    signature_holds,
    to_fixed_point,
    unmask,
)
from fedframe.network.node_request import AGREE, COUNT_KINDS, UNMASK
from fedframe.network.shamir import SHARE_BYTES, join

if TYPE_CHECKING:
    from fedframe.network.engine import NetworkEngine

MASKED, SHARES, SIGNATURE = "masked", "shares", "signature"
COUNTS = "counts/"  # before the kind of work that counts right predictions: a tensor of a masked reply
HEAD = 2  # numbers at the beginning of a masked vector: the loss, and whether the training has diverged
UNMASK_TIMEOUT = 600.0  # seconds for those who have sent a masked reply and are gone, unless patience says otherwise


def summed_kinds(job: Job) -> tuple[str, ...]:
    """The kinds of work of which only sums over clients are revealed; where noise is promised no scores leave."""
    if withholds_figures(job.settings):
        return ("train", "statistics") if release_of(job.method) is not None else ("train",)
    return ("train", "statistics", "measure", CLASSES, *COUNT_KINDS)


def main_kind(request: Message, kinds: Collection[str]) -> str:
    """Of kinds of work that are answered by one masked vector: the one under whose name it goes."""
    return request.kind if request.kind in kinds else sorted(kinds)[0]


def sum_weighting(job: Job, kind: str, name: str) -> Literal["weighted", "plain"]:
    """Whether a tensor of a reply is weighted in the sum, or plain."""
    if name == "update":
        return "weighted"
    if (kind == "measure" and name in TALLIES) or name.startswith(COUNTS) or kind == name == CLASSES:
        return "plain"
    upload = job.uploads.get(name)
    if upload is None or upload.aggregate in ("each", "number"):
        raise ProtocolError(f"{name} of a {kind} reply cannot be added up securely.")
    return "weighted" if upload.aggregate == "weighted_sum" else "plain"


def bits_of(job: Job, weighting: Literal["weighted", "plain"]) -> int:
    """The bits behind the point of values that are weighted so."""
    return FRACTION_BITS[job.settings.weighting if weighting == "weighted" else "plain"]


def weight_of(job: Job, samples: int) -> float:
    """A client's weight in the mean."""
    return float(samples) if job.settings.weighting == "samples" else 1.0


# -- the node's side ---------------------------------------------------------------------------------------------------
def check_group(job: Job, kind: str, group: MaskingGroup) -> None:
    """Refuse a group of other clients than the agreement has for this work: among few, one is easily read."""
    clients = len(job.federation)
    drawn = job.clients_per_round if kind == "train" else clients
    chosen = kind == "train" and bool(job.method.parts_with("select_clients"))
    fine = 2 <= len(group.keys) <= clients if chosen else len(group.keys) == drawn
    if not fine or max(group.keys) >= clients:
        raise ProtocolError(f"{len(group.keys)} clients would be added up for {kind}; by the agreement it is {drawn}.")


def masked_reply(job: Job, purpose: str, reply: Message, group: MaskingGroup, masker: Masker) -> tuple[Message, bool]:
    """What a client sends in place of its reply, and whether it had no numbers that can be added up.

    That is a masked vector, shares of its masks' seeds, and its samples. Masks are revealed for one request of a
    purpose, which names the run, the kind of work and the round.
    """
    samples, clients = int(reply.numbers["samples"]), len(group.keys)
    factors = {"weighted": weight_of(job, samples), "plain": 1.0}

    def encoded(name: str, tensor: Tensor) -> RingVector | None:
        weighting = sum_weighting(job, reply.kind, name)
        return to_fixed_point(tensor, factors[weighting], bits_of(job, weighting), clients)

    loss = torch.tensor([float(reply.numbers.get("loss", 0.0))], dtype=torch.float64)
    first = to_fixed_point(loss, samples, FRACTION_BITS["samples"], clients)
    found = {name: encoded(name, tensor) for name, tensor in sorted(reply.tensors.items())}
    diverged = first is None or any(vector is None for vector in found.values())
    flag = np.array([int(diverged) << FRACTION_BITS["plain"]], dtype=np.uint64)
    pieces = [np.zeros(1, dtype=np.uint64) if first is None or diverged else first, flag]
    for name, vector in found.items():
        # Scores are of the model that was sent, and count whatever became of the training.
        hidden = vector is None or (diverged and not name.startswith(COUNTS))
        pieces.append(np.zeros(reply.tensors[name].numel(), dtype=np.uint64) if hidden or vector is None else vector)
    masked = masker.mask(np.concatenate(pieces), reply.unit, group, purpose)
    shares = masker.shares(reply.unit, group, job.fewest(clients), agreeing(clients))
    tensors = {MASKED: torch.from_numpy(masked.view(np.int64)), SHARES: as_tensor(shares)}
    return Message(reply.kind, reply.round, reply.unit, tensors, {"samples": samples}), diverged


def signature_reply(
    request: Message, client: int, group: MaskingGroup, masker: Masker, fewest: int, names: Callable[[int], str]
) -> Message:
    """A client's signature under the list of those whose masked replies have arrived."""
    signature = masker.sign(client, group, fewest, names)
    return Message(AGREE, request.round, client, numbers={SIGNATURE: signature})


def seeds_reply(request: Message, client: int, group: MaskingGroup, masker: Masker, fewest: int) -> Message:
    """The seeds that a client reveals: of its own masks, and its shares of the others'."""
    prefix = f"{client}/"
    blocks = {
        int(name.removeprefix(prefix)): tensor.numpy().tobytes()
        for name, tensor in request.tensors.items()
        if name.startswith(prefix) and name.removeprefix(prefix).isdecimal() and tensor.dtype == torch.uint8
    }
    seeds = masker.reveal(client, group, fewest, agreeing(len(group.keys)), blocks)
    return Message(UNMASK, request.round, client, {name: as_tensor(seed) for name, seed in seeds.items()})


def as_tensor(content: bytes) -> Tensor:
    """Bytes as messages hold them."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


# -- the server's side -------------------------------------------------------------------------------------------------
def masking_group_for(
    engine: NetworkEngine, request: Message, units: Sequence[int], kinds: Collection[str]
) -> MaskingGroup:
    """The clients whose replies to a request are summed."""
    keys = {unit: engine.keys[unit] for unit in units}
    return MaskingGroup(keys, mask_context(engine.run_name, request, keys, kinds))


def run_securely(
    engine: NetworkEngine, request: Message, units: Sequence[int], piggybacked: Collection[str]
) -> Iterator[Message]:
    """Have a request and what was piggybacked on it performed, and their replies summed.

    One vector holds all of it, so scores are of the clients that are in the request, all of them.
    """
    summed = list(units) if units else list(range(len(engine.node_of_client)))
    if request.kind == "train":  # masks are bound to what is asked, and a resumed run must ask for the same
        piggybacked = scored_with(engine.job, request.round)
    kinds = [*piggybacked, *([request.kind] if units and request.kind not in piggybacked else [])]
    main = main_kind(request, kinds)
    request = replace(request, kind=main)
    shapes = dict(engine.expected.get(main, {})) if main not in COUNT_KINDS else {}
    shapes |= {f"{COUNTS}{kind}": torch.Size([len(SUMMED_COUNTS)]) for kind in kinds if kind in COUNT_KINDS}
    engine.masked_shapes = shapes
    group = masking_group_for(engine, request, summed, kinds)
    wanted = dict.fromkeys(sorted(kinds, key=lambda kind: kind == main), summed)
    found, reasons = engine.gather_replies(request, wanted, engine.job.fewest(len(summed)), group)
    replies = [engine.reply_or_lost(request, main, unit, found, reasons) for unit in summed]
    for reply in sum_securely(engine, request, replies, group, shapes):
        counts = {name.removeprefix(COUNTS): t for name, t in reply.tensors.items() if name.startswith(COUNTS)}
        for kind in piggybacked:
            if kind in counts:
                engine.add_piggyback_reply(Message(kind, request.round, ALL, {"counts": counts[kind]}))
        own = {name: tensor for name, tensor in reply.tensors.items() if not name.startswith(COUNTS)}
        own |= {"counts": counts[main]} if main in counts else {}
        if units:
            yield replace(reply, tensors=own)


def sum_securely(
    engine: NetworkEngine,
    request: Message,
    replies: Sequence[Message],
    group: MaskingGroup,
    shapes: Mapping[str, torch.Size],
) -> Iterator[Message]:
    """From masked replies: those that are lost, and one that stands for all others."""
    job, masked, shares = engine.job, dict[int, RingVector](), dict[int, bytes]()
    size, clients = vector_size(shapes), len(group.keys)
    # Those who sign and reveal may be fewer than those who are in the sum: who goes after it has sent costs nothing.
    fewest, threshold = job.fewest(clients), agreeing(clients)
    for reply in replies:
        max_samples = len(job.federation.train[reply.unit])
        vector = masked_vector(reply, size, max_samples, group) if reply.kind != LOST else str(reply.numbers["reason"])
        if isinstance(vector, str):
            yield Message.lost(request, reply.unit, vector)
        else:
            masked[reply.unit], shares[reply.unit] = vector, reply.tensors[SHARES].numpy().tobytes()

    def given_up(reason: str) -> Iterator[Message]:
        for unit in masked:
            yield Message.lost(request, unit, reason)

    if len(masked) < fewest:  # fewer may not be unmasked, and no node would help with it
        yield from given_up("too few masked replies could be used to add them up")
        return
    group = gather_signatures(engine, request, replace(group, alive=tuple(sorted(masked))), threshold)
    if len(group.signatures) < threshold:
        yield from given_up(f"fewer than {threshold} clients have signed who is left, and masks stay hidden")
        return
    seeds, silent = gather_seeds(engine, request, group, shares, threshold)
    if silent:  # others have revealed theirs for it too and will not for fewer: the next round has new masks
        names = ", ".join(str(job.federation.names[client]) for client in silent)
        yield from given_up(f"{names} sent a masked reply and did not reveal its masks, nor did enough others")
        return
    engine.summed = sorted(masked)
    samples = [int(reply.numbers["samples"]) for reply in replies if reply.unit in masked]
    vector = unmask(masked, seeds)
    diverged = diverged_clients(vector)
    if not 0 <= diverged <= len(masked) - (threshold if diverged else 0):
        if diverged == len(masked) and not vector[HEAD:].any():  # nobody else can make the others' sum vanish
            raise DivergedError(
                f"Round {request.round}: the training of no client gives finite numbers any more; start again with a "
                f"smaller lr (now {request.numbers.get('lr')}) or with clip = 10."
            )
        yield from given_up(
            f"by the sum, the training of {diverged} of {len(masked)} clients gave no finite numbers, and at least "
            f"{threshold} must; a smaller lr or clip = 10 may help"
        )
        return
    if diverged:
        engine.notify(
            f"{request.kind} of round {request.round}: {diverged} of {len(masked)} clients had no finite numbers and "
            "count as no change; which of them is not seen under secure = true."
        )
    total = summed_reply(job, request, vector, samples, shapes)
    yield replace(total, numbers={**total.numbers, "bytes": sum(vector.nbytes for vector in masked.values())})


def gather_signatures(engine: NetworkEngine, request: Message, group: MaskingGroup, threshold: int) -> MaskingGroup:
    """The group with the signatures under its list of survivors that have come and hold."""
    found, _ = engine.gather_replies(
        Message(AGREE, request.round), {AGREE: group.alive}, threshold, group, patience_of(engine)
    )
    given = {client: str(reply.numbers.get(SIGNATURE)) for (_, client), reply in found.items()}
    return replace(group, signatures={k: text for k, text in given.items() if signature_holds(group, k, text)})


def gather_seeds(
    engine: NetworkEngine, request: Message, group: MaskingGroup, shares: Mapping[int, bytes], threshold: int
) -> tuple[dict[int, dict[str, bytes]], list[int]]:
    """The seeds of masks that do not cancel, of all whose masked replies have arrived, and whose are not to be had.

    Those who have gone since are made of the others' shares.
    """
    size, tensors = block_size(group), dict[str, Tensor]()
    for sender in group.alive:
        for place, other in enumerate(others_of(sender, group)):
            if other in group.alive:
                tensors[f"{other}/{sender}"] = as_tensor(shares[sender][size * place : size * (place + 1)])
    asked = Message(UNMASK, request.round, tensors=tensors)
    found, _ = engine.gather_replies(asked, {UNMASK: group.alive}, threshold, group, patience_of(engine))
    seeds: dict[int, dict[str, bytes]] = {}
    held: dict[int, dict[int, bytes]] = {
        client: {} for client in group.alive
    }  # shares by whose they are and who held them
    for (_, client), reply in found.items():
        revealed = revealed_seeds(reply, group)
        if revealed is None:
            continue
        seeds[client] = {name: seed for name, seed in revealed.items() if not name.startswith("shares/")}
        for name, block in revealed.items():
            if name.startswith("shares/"):
                held[int(name.removeprefix("shares/"))][client] = block
    for client in group.alive:
        if client not in seeds and (made := joined_seeds(held[client], group, threshold)) is not None:
            seeds[client] = made
    return seeds, [client for client in group.alive if client not in seeds]


def joined_seeds(held: Mapping[int, bytes], group: MaskingGroup, threshold: int) -> dict[str, bytes] | None:
    """The seeds of a client that has gone after it sent its masked reply, from the shares that others hold."""
    needed = min(threshold, len(group.keys) - 1)
    if len(held) < needed:
        return None
    chosen, seeds = sorted(held)[:needed], {}
    for place, name in enumerate(["own", *(f"pair/{other}" for other in group.gone)]):
        part = slice(SHARE_BYTES * place, SHARE_BYTES * (place + 1))
        seed = join({holder + 1: held[holder][part] for holder in chosen})
        if seed is None:
            return None
        seeds[name] = seed
    return seeds


def vector_size(shapes: Mapping[str, torch.Size]) -> int:
    """How many numbers a masked vector holds for tensors of these shapes."""
    return HEAD + sum(shape.numel() for shape in shapes.values())


def diverged_clients(vector: RingVector) -> int:
    """How many clients have said that their training has diverged."""
    return round(float(from_fixed_point(vector[1:HEAD], FRACTION_BITS["plain"])))


def patience_of(engine: NetworkEngine) -> float:
    """How long those who have sent a masked reply are waited for."""
    return engine.job.settings.patience or UNMASK_TIMEOUT


def masked_vector(reply: Message, size: int, max_samples: int, group: MaskingGroup) -> RingVector | str:
    """The vector of a masked reply, or why it is not valid."""
    if not has_numbers(reply):
        return "its update holds NaN or infinite values"
    if set(reply.tensors) != {MASKED, SHARES} or set(reply.numbers) != {"samples"}:
        return "it is no masked reply"
    tensor, shares, samples = reply.tensors[MASKED], reply.tensors[SHARES], reply.numbers["samples"]
    if tensor.dtype != torch.int64 or tensor.shape != (size,):
        return f"its vector is {tensor.dtype} {tuple(tensor.shape)}, not int64 ({size},)"
    if shares.dtype != torch.uint8 or shares.shape != (block_size(group) * (len(group.keys) - 1),):
        return "its shares of seeds are not of the right form"
    if not isinstance(samples, int) or not 1 <= samples <= max_samples:
        return f"samples is {samples!r}, and the client has {max_samples}"
    vector: RingVector = tensor.numpy().view(np.uint64)
    return vector


def revealed_seeds(reply: Message, group: MaskingGroup) -> dict[str, bytes] | None:
    """What a client has revealed; None if it is not what was asked for."""
    sizes = {"own": SEED_BYTES} | {f"pair/{other}": SEED_BYTES for other in group.gone}
    optional = {f"shares/{k}": SHARE_BYTES * (1 + len(group.gone)) for k in group.alive if k != reply.unit}
    names = set(reply.tensors)
    if not set(sizes) <= names <= {*sizes, *optional}:
        return None
    for name, tensor in reply.tensors.items():
        if tensor.dtype != torch.uint8 or tensor.shape != ((sizes | optional)[name],):
            return None
    return {name: tensor.numpy().tobytes() for name, tensor in reply.tensors.items()}


def summed_reply(
    job: Job, request: Message, vector: RingVector, samples: Sequence[int], shapes: Mapping[str, torch.Size]
) -> Message:
    """One reply that stands for all clients whose vectors were summed."""
    weight = sum(weight_of(job, each) for each in samples)
    diverged = diverged_clients(vector)
    # Whose loss is missing is not known, so those that are there stand for as many as they are.
    loss = float(from_fixed_point(vector[:1], FRACTION_BITS["samples"])) / sum(samples)
    loss *= len(samples) / (len(samples) - diverged)
    tensors, start = {}, HEAD
    for name, shape in sorted(shapes.items()):
        weighting = sum_weighting(job, request.kind, name)
        total = from_fixed_point(vector[start : start + shape.numel()], bits_of(job, weighting)).reshape(shape)
        tensors[name] = total / weight if weighting == "weighted" else total
        start += shape.numel()
    numbers: dict[str, int | float | str] = {"samples": sum(samples), "clients": len(samples), DIVERGED: diverged}
    if not withholds_figures(job.settings):
        numbers["loss"] = loss
    return Message(request.kind, request.round, ALL, tensors, numbers)
