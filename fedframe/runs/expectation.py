"""How long a run will take, from its first batch: said before the first round where it is long."""

from __future__ import annotations

import os
import time

import torch

from fedframe.core.batches import plain_batches
from fedframe.core.job import Job
from fedframe.models import NETS
from fedframe.util.text import duration

LONG = 60.0  # seconds: a shorter run is over before anybody has read the sentence
FAST = {"convnet": "mlp", "resnet20": "convnet"}  # of each net one that is faster; of all others convnet


def expectation(job: Job, done: int) -> list[str]:
    """A sentence on the time of a round and of the rounds that are left; nothing for a short run."""
    left = job.settings.rounds - done
    elsewhere = job.device == "cpu" and job.settings.device != "cpu"  # workers on GPUs, which this process leaves alone
    if left <= 0 or elsewhere or not len(job.federation.source.train):
        return []
    try:
        samples, seconds = time_batch(job)
    except Exception:  # of the user's own net or part: the run itself says what is wrong, and where
        return []
    return expected(job, samples, seconds, left)


def expected(job: Job, samples: int, seconds: float, left: int) -> list[str]:
    """The sentence, from the time that a batch of so many samples took."""
    settings = job.settings
    sizes = job.federation.train.sizes().double()
    drawn = job.clients_per_round / max(len(sizes), 1)
    visits = settings.steps * settings.batch * len(sizes) if settings.steps else settings.epochs * float(sizes.sum())
    round_seconds = visits * drawn * seconds / samples / processes(job)
    if round_seconds * left < LONG:
        return []
    name = str(settings.model).partition(":")[0]
    faster = FAST.get(name, "convnet")
    images = len(job.federation.source.input_shape) == 3
    hint = f" A smaller net is faster: --model {faster}." if name in NETS and images and faster != name else ""
    return [
        f"A batch of {samples} takes {seconds:.2g} s in {settings.model} here: expect about "
        f"{duration(round_seconds)} a round, {duration(round_seconds * left)} for {left}.{hint}"
    ]


def time_batch(job: Job) -> tuple[int, float]:
    """The samples of a batch, and the seconds that a forward and a backward pass take; nothing of the run changes."""
    largest = int(job.federation.train.sizes().argmax())
    rows = job.federation.train[largest][: job.settings.batch]
    source, device = job.federation.source, torch.device(job.device)
    with torch.random.fork_rng(devices=[]):
        model = job.fresh_model().to(device).train(len(rows) > 1)
        inputs = next(plain_batches(source, source.train, rows, len(rows))).to(device)
        times = []
        for _ in range(2):  # the first one also makes buffers
            began = time.perf_counter()
            logits = job.method.logits(model, inputs)
            if logits.requires_grad:
                logits.sum().backward()  # type: ignore[no-untyped-call]
            times.append(time.perf_counter() - began)
    return len(rows), min(times)


def processes(job: Job) -> int:
    """How many clients train at the same time."""
    asked = job.settings.workers
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(asked if asked else cores, job.clients_per_round)) if job.device == "cpu" else 1
