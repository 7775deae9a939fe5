"""Differential privacy of clients: no update is longer than a bound, and noise hides whether any one client was there.

McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018. With n clients, C = `privacy_clip`
and z = `privacy_noise`:
    step = 1/n (sum_k u_k min(1, C / |u_k|) + N(0, z^2 C^2))                             (privacy_at = server)
    step = 1/n sum_k (u_k min(1, C / |u_k|) + N(0, z^2 C^2 / m))                         (privacy_at = node)
At the node m is 1, so that a single update is hidden from the organiser too; with secure aggregation, where the
organiser sees sums of at least m + 1 clients only, each node adds its share of the noise. A member can take its own
share off; that of the others is the whole.

epsilon for a given delta is what dp-accounting (Google) says of so many rounds. Where all clients are in every round,
two federations are neighbours if one client's updates are zero in one of them. Where clients are drawn (a fixed number,
without replacement: Wang, Balle and Kasiviswanathan, AISTATS 2019), they are if one client is another in one of them,
and epsilon assumes that only the server knows who was drawn: the draw comes from a secret of the run. It covers
the shared model and, at the node, updates. It does not cover losses and counts of right predictions, which clients send
for the scores, nor what a person at the node can see.

Noise does not come from the run's seed, which everybody knows: a private run cannot be repeated bit for bit. A node's
own noise is a function of its secret and of what it hides: the same for the same update, or asking twice would average
it away, and another for another one, or the difference of two answers would be that of two updates; in secure sums also
another in every run (`noise_purpose`). epsilon is that of one run: those of several runs on the same data add up.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import math
import os
import secrets
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedframe.errors import SettingError

if TYPE_CHECKING:
    from fedframe.core.job import Job
    from fedframe.core.message import Message
    from fedframe.core.method import Method
    from fedframe.core.part import Part
    from fedframe.settings import Settings

SLACK = 1 - 1e-6  # rounding must not leave an update longer than the bound
KEY = "privacy.key"


def check_private(settings: Settings, method: Method, averages_buffers: bool) -> None:
    """Refuse what would leave a client unprotected, or protect nothing."""
    if settings.privacy_clip is None:
        if settings.privacy_noise:
            raise SettingError("privacy_noise needs a bound on updates; add one, such as privacy_clip = 1.")
        return
    if not settings.privacy_noise:
        raise SettingError("privacy_clip alone protects nobody; add privacy_noise = 1, or leave it out.")
    if importlib.util.find_spec("dp_accounting") is None:
        raise SettingError("privacy_noise needs dp-accounting; install it with: pip install 'fedframe[privacy]'.")
    if settings.weighting != "uniform":
        raise SettingError(
            "privacy_clip gives all clients the same bound, so all need the same weight; use weighting = uniform."
        )
    if averages_buffers:
        raise SettingError("privacy_clip does not cover BatchNorm's statistics; use buffers = private or fixed.")
    merge = method.slot("merge")
    releasing = release_of(method)
    uploading = [
        part
        for hook in ("uploads", "statistics", "select_clients", "before_merge")
        for part in method.parts_with(hook)
        if part is not releasing
    ]
    if releasing is not None and settings.rounds:
        raise SettingError(
            f"{releasing.name!r} is private as one release of its own, and rounds = {settings.rounds} would be more; "
            f"use the method {releasing.name} alone, with rounds = 0."
        )
    unfit = [merge] if not method.parts_with("server_step") or merge.memory else []
    for part in (*uploading, *unfit):
        raise SettingError(
            f"privacy_clip covers the mean of updates, and {part.name!r} of {method.name!r} takes more than that from "
            "clients; leave one of them out, or use a method such as fedavg, fedprox or fedadam."
        )


def release_of(method: Method) -> Part | None:
    """The part whose statistics after the last round are one private release, if there is one."""
    part = method.optional_slot("server_stage")
    return part if part is not None and part.protects is not None else None


# -- updates -----------------------------------------------------------------------------------------------------------
def clipped(update: Tensor, bound: float) -> Tensor:
    """The update, no longer than the bound."""
    norm = float(update.double().norm())
    return update if norm <= bound else (update.double() * (SLACK * bound / norm)).float()


def noise(size: int, deviation: float, generator: np.random.Generator) -> Tensor:
    """Gaussian noise in float64."""
    return torch.from_numpy(generator.normal(0.0, deviation, size))


def local_noise(update: Tensor, deviation: float, folder: Path, purpose: str, model: Tensor) -> Tensor:
    """The update with the client's own noise: the same for the same update and purpose, another for any other."""
    digest = hashlib.blake2b(f"{purpose} {deviation!r}".encode(), key=local_secret(folder), digest_size=32)
    for tensor in (model, update):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    generator = np.random.default_rng(int.from_bytes(digest.digest(), "little"))
    return (update.double() + noise(len(update), deviation, generator)).float()


def noise_purpose(job: Job, what: str) -> str:
    """What a client's own noise is bound to, beside the update that it hides.

    A single update keeps its noise in every run. A share of noise in a secure sum is another one in every run: with the
    same in two, the difference of a sum with a client and one without would have the share of that client alone.
    """
    return f"{what} {job.run}" if job.settings.secure else what


def local_secret(folder: Path) -> bytes:
    """A secret of this machine, made once and never sent."""
    path = folder / KEY
    with contextlib.suppress(FileExistsError):
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{KEY}.{os.getpid()}.part"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)  # whole or not at all, and the first of several processes wins
        finally:
            draft.unlink()
    return path.read_bytes()


def secret_generator(folder: Path, round: int) -> np.random.Generator:
    """Draws the clients of a round: reproducible within the run, unpredictable outside of it."""
    digest = hashlib.blake2b(f"clients {round}".encode(), key=local_secret(folder), digest_size=32)
    return np.random.default_rng(int.from_bytes(digest.digest(), "little"))


def fresh_generator() -> np.random.Generator:
    """A generator for noise that cannot be reproduced."""
    return np.random.default_rng(secrets.randbits(256))


def node_deviation(job: Job, clients: int) -> float:
    """Deviation of the noise that a client adds by itself, in units of the bound; 0 if the server adds it.

    With secure aggregation only sums over so many of `clients` are seen: each adds its share of the noise.
    """
    settings = job.settings
    if settings.privacy_clip is None or settings.privacy_at != "node":
        return 0.0
    together = job.fewest(clients) if settings.secure else 2
    return settings.privacy_noise / math.sqrt(together - 1)


# -- on the server -----------------------------------------------------------------------------------------------------
def clip_update(reply: Message, settings: Settings) -> Message:
    """The reply with its update no longer than the privacy settings allow, where the server sees single ones."""
    if settings.privacy_clip is None or settings.secure or settings.privacy_at == "node":
        return reply
    return replace(reply, tensors={"update": clipped(reply.tensors["update"], settings.privacy_clip)})


def server_noise(size: int, settings: Settings) -> Tensor | None:
    """Noise that hides single clients in the sum of updates, where the server adds it."""
    if settings.privacy_clip is None or settings.privacy_at != "server":
        return None
    return noise(size, settings.privacy_clip * settings.privacy_noise, fresh_generator())


# -- what is spent -----------------------------------------------------------------------------------------------------
@lru_cache(maxsize=4096)
def epsilon(noise_multiplier: float, delta: float, rounds: int, drawn: int, clients: int, amplified: bool) -> float:
    """What so many rounds have spent, with `drawn` of all clients in each.

    `amplified`: who is drawn is hidden, as it is from those who see the shared model only.
    """
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    if drawn == clients or not amplified:
        event: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(noise_multiplier)
        accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    else:
        # One client in another's place moves the sum by up to 2 C.
        event = dp_accounting.SampledWithoutReplacementDpEvent(
            clients, drawn, dp_accounting.GaussianDpEvent(noise_multiplier / 2)
        )
        accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    return float(accountant.compose(event, rounds).get_epsilon(delta))


@lru_cache(maxsize=4096)
def composed_epsilon(events: tuple[tuple[float, int], ...], delta: float) -> float:
    """What updates with these noise multipliers, so many of each, reveal together of the client that they are of.

    No draw of clients is counted on: it is what a client has sent, whoever knew of it.
    """
    if not events:
        return 0.0
    if any(noise <= 0 for noise, _ in events):
        return math.inf
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    for noise_multiplier, count in events:
        accountant.compose(dp_accounting.GaussianDpEvent(noise_multiplier), count)
    return float(accountant.get_epsilon(delta))


def withholds_figures(settings: Settings) -> bool:
    """Whether nothing but noised updates may leave a client: no loss, no counts, no scores."""
    return settings.privacy_clip is not None and settings.privacy_at == "node"


def epsilon_spent(job: Job, round: int) -> float:
    """What a run has spent up to a round."""
    settings, hidden = job.settings, job.settings.privacy_at == "server"
    drawn, clients = job.clients_per_round, len(job.federation)
    return epsilon(settings.privacy_noise, settings.privacy_delta, round, drawn, clients, hidden)


def epsilon_of_release(job: Job) -> float:
    """What the one release of all clients' statistics spends."""
    clients, settings = len(job.federation), job.settings
    return epsilon(settings.privacy_noise, settings.privacy_delta, 1, clients, clients, False)
