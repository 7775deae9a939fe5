"""What a framework's rounds cost: processor seconds, wall time and memory of a process and all that it has started.

The first round warms up and is not counted. A process that ends before the last round takes its seconds with it, so
frameworks are run such that their workers stay.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable

import psutil


def tree() -> list[psutil.Process]:
    """This process and its descendants."""
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """User and system seconds of those that live."""
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def shared_once(processes: Iterable[psutil.Process]) -> float:
    """Megabytes of memory, with shared pages counted once (pss)."""
    total = 0
    for process in processes:
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total / 2**20


class Meter:
    """Called after each round; remembers what has been spent since the first."""

    def __init__(self) -> None:
        self.rounds = 0
        self.wall = self.cpu = self.peak = 0.0

    def round(self) -> None:
        """A round is over."""
        processes = tree()
        now = time.perf_counter(), cpu_seconds(processes)
        self.rounds += 1
        if self.rounds == 1:
            self._began = now
        self.wall, self.cpu = now[0] - self._began[0], now[1] - self._began[1]
        if self.rounds <= 2 or self.rounds % 5 == 0:
            self._look(processes)

    def _look(self, processes: Iterable[psutil.Process]) -> None:
        """Look at the memory, which takes as long as some rounds do and is not counted."""
        wall, cpu = time.perf_counter(), time.process_time()
        self.peak = max(self.peak, shared_once(processes))
        taken = time.perf_counter() - wall, time.process_time() - cpu
        self._began = self._began[0] + taken[0], self._began[1] + taken[1]

    def report(self) -> None:
        """Print the result as the last line."""
        result = {"wall": self.wall, "cpu": self.cpu, "pss": self.peak, "rounds": self.rounds - 1}
        print(json.dumps(result), flush=True)
