"""What a run costs: processor seconds and memory of all its processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

import psutil

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


def cpu_seconds() -> float:
    """Processor seconds of this process and of its children that have ended."""
    if resource is None:
        return time.process_time()
    here, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return here.ru_utime + here.ru_stime + children.ru_utime + children.ru_stime


def memory_bytes(processes: Iterable[int]) -> int:
    """Memory of this process and the given ones now.

    Linux says how much of each shared page is whose (PSS), so that it counts once. Elsewhere only pages that no other
    process has are counted.
    """
    total = 0
    for process in (os.getpid(), *processes):
        try:
            found = psutil.Process(process).memory_full_info()
        except psutil.Error:  # it has ended, or is somebody else's
            continue
        total += getattr(found, "pss", found.uss)
    return total
