"""Single clients' statistics, kept in the run folder: what it takes to fit the model again with or without a client.

A client's reply to a request is used again only where the very same request would be sent to it, for the same inputs: a
digest of both is kept beside it. So statistics that depend on what other clients have sent before (a scale that comes
from everybody's data) are never mistaken for those of a federation without one of them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fedframe.core.message import STAGE, Message
from fedframe.util.files import read_metadata, read_tensors, write_tensors

if TYPE_CHECKING:
    from fedframe.core.job import Job

SUMS = "sums"  # the folder, in that of the run


def request_digest(job: Job, request: Message) -> str:
    """A short text that changes with what clients are sent, and with how their inputs and numbers are scaled."""
    digest = hashlib.blake2b(digest_size=16)
    source = job.federation.source
    named = {**request.tensors, "input/mean": source.mean, "input/std": source.std}
    if source.target is not None and source.target.mean is not None and source.target.std is not None:
        named |= {"target/mean": source.target.mean, "target/std": source.target.std}
    for name, tensor in sorted(named.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    digest.update(f"{request.kind} {request.round} {request.numbers.get(STAGE, 0)}".encode())
    return digest.hexdigest()


def statistics_path(folder: Path, client: int, stage: int) -> Path:
    """The file of a client's statistics of one stage."""
    return folder / SUMS / f"{client:06d}-{stage}.safetensors"


def keep_statistics(folder: Path, reply: Message, stage: int, digest: str) -> None:
    """Keep a client's reply; a sum over several clients, as secure aggregation gives it, belongs to none of them."""
    if reply.unit < 0:
        return
    notes = {"client": reply.unit, "stage": stage, "request": digest, "numbers": reply.numbers}
    write_tensors(statistics_path(folder, reply.unit, stage), reply.tensors, notes)


def is_kept(folder: Path, client: int, request: Message, digest: str) -> bool:
    """Whether the client's reply to this very request was kept."""
    path = statistics_path(folder, client, int(request.numbers.get(STAGE, 0)))
    return path.exists() and read_metadata(path).get("request") == digest


def kept_statistics(folder: Path, client: int, request: Message) -> Message:
    """The reply that was kept."""
    tensors, notes = read_tensors(statistics_path(folder, client, int(request.numbers.get(STAGE, 0))))
    return Message(request.kind, request.round, client, tensors, notes["numbers"])
