"""The engine `local`: this process, or worker processes where they are possible."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable

from fedframe.core.job import Job
from fedframe.engines.inline import InlineEngine
from fedframe.engines.worker_pool import WorkerEngine


def worker_count(job: Job) -> int:
    """How many processes to use: as set, or one per core; one where processes cannot share memory or a GPU."""
    if job.settings.device != "cpu" or "fork" not in multiprocessing.get_all_start_methods():
        return 1
    return job.settings.workers or available_cores()


def available_cores() -> int:
    """The cores this process may use (containers and schedulers often allow fewer than the machine has)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def local_engine(job: Job, notify: Callable[[str], None]) -> InlineEngine | WorkerEngine:
    """Start the engine that suits the job."""
    workers = worker_count(job)
    return InlineEngine(job) if workers == 1 else WorkerEngine(job, workers, notify)
