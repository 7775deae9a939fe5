"""What a run costs: processor seconds and memory of all its processes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

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
    """Memory of this process and the given ones now; pages that they share count once.

    Linux says how much of each page is whose (PSS). Elsewhere it is the peak of this process alone.
    """
    total = 0
    for process in (os.getpid(), *processes):
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        except (OSError, StopIteration):
            continue
    if total or resource is None:
        return total
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
