"""The engine `local`: this process, or worker processes where they are possible."""

from __future__ import annotations

import os
from collections.abc import Callable

from fedframe.core.job import Job
from fedframe.engines.inline import InlineEngine
from fedframe.engines.worker_pool import WorkerEngine
from fedframe.jobs.devices import can_fork, device_names


def worker_count(job: Job) -> int:
    """How many processes to use: as set, or one per core or GPU; one where processes cannot be forked."""
    devices, asked = device_names(job.settings.device), job.settings.workers
    if devices[0].startswith("mps") or not can_fork():
        return 1
    if devices == ["cpu"]:
        return asked or available_cores()
    return max(asked or 1, len(devices))


def available_cores() -> int:
    """The cores this process may use (containers and schedulers often allow fewer than the machine has)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def local_engine(job: Job, notify: Callable[[str], None]) -> InlineEngine | WorkerEngine:
    """Start the engine that suits the job."""
    workers = worker_count(job)
    if workers == 1:
        devices = device_names(job.settings.device)
        if len(devices) > 1 or (devices[0].startswith("cuda") and (job.settings.workers or 1) > 1):
            notify(
                f"device = {job.settings.device}, and no worker process can be started on it from here (CUDA is in use "
                "in this process already, or the system cannot fork): clients train one by one on "
                f"{devices[0]}."
            )
        return InlineEngine(job)
    return WorkerEngine(job, workers, notify)
