"""How many cells go side by side: never more working processes than cores, and no more than the memory holds.

Cells with one worker each are the best use of the cores: no process waits for the slowest client of a round. But each
has its own copy of the data and its own activations. So a cell starts only if as much memory is left as the largest
cell so far has taken at its peak; before any has been measured, a generous guess counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import psutil

GUESS = 4 << 30  # bytes, until a cell has been measured
RESERVE = 0.9  # share of the free memory that cells may take


@dataclass
class Usage:
    """What a running cell uses: its cores, and its memory at the peak so far (0: not measured yet)."""

    cores: int
    memory: int = 0


def workers_for_next(cores: int, running: Collection[Usage], waiting: int, largest: int, free: int | None) -> int:
    """Workers of the next cell to start; 0 if it has to wait.

    `largest` is the most memory that a cell has taken so far (0: unknown), `free` what the system has left.
    """
    spare = cores - sum(usage.cores for usage in running)
    if spare < 1 or waiting < 1:
        return 0
    if running and free is not None:
        expected = largest or GUESS
        still_coming = sum(max(0, expected - usage.memory) for usage in running)
        if RESERVE * free < expected + still_coming:
            return 0
    return max(1, spare // waiting)  # one each, unless there are more cores than cells


def free_memory() -> int:
    """Bytes that programs can still have; a container's limit counts."""
    free = [int(psutil.virtual_memory().available)]
    with contextlib.suppress(OSError, ValueError):  # "max" is no number: there is no limit
        group = Path("/sys/fs/cgroup")
        free.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return min(free)


def peak_memory() -> int:
    """The most memory that this process and its workers have held, in bytes.

    Pages that they share count more than once: the figure decides on whether others may start, so it may be too large
    but not too small.
    """
    here = psutil.Process()
    total = 0
    for process in (here, *here.children()):
        with contextlib.suppress(psutil.Error):
            total += peak_of(process)
    return total


def peak_of(process: psutil.Process) -> int:
    """The most memory that a process has held; where only Linux would know, what it holds now."""
    with contextlib.suppress(OSError, StopIteration):  # psutil knows no peak on Linux
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return int(process.memory_info().rss)
