"""Fedframe on a job: `python -m benchmarks.ours A 5 job.npz [precision=bf16]` prints the seconds of the rounds as JSON.

The first round warms up and is not counted, as in the loops it is measured against. The last is not counted either: the
run scores its model, which the loops do not.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.jobs import JOBS, Job
from fedframe.api import run
from fedframe.core.round_record import RoundRecord
from fedframe.runs.progress import Display


def children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()]


def cpu_seconds(processes: Iterable[int]) -> float:
    """Processor seconds of living processes (user and system)."""
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory(processes: Iterable[int]) -> dict[str, float]:
    """Megabytes: every process by itself (rss), and with shared pages counted once (pss)."""
    total = {"Rss:": 0, "Pss:": 0}
    for process in processes:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            name, *rest = line.split()
            if name in total:
                total[name] += int(rest[0])
    return {"rss": total["Rss:"] / 1024, "pss": total["Pss:"] / 1024}


class Stopwatch(Display):
    """Times the rounds between the first and the last; looks at the memory in these two, because a look takes time."""

    def __init__(self) -> None:
        self.result: dict[str, Any] = {}
        self.peak = {"rss": 0.0, "pss": 0.0}

    def round(self, record: RoundRecord) -> None:
        processes = [os.getpid(), *children()]
        if record.round == 1 or record.scores is not None:
            used = memory(processes)
            self.peak = {name: max(value, used[name]) for name, value in self.peak.items()}
        if record.scores is not None:
            return
        now = time.perf_counter(), cpu_seconds(processes)
        if record.round == 1:
            self.began = now
        self.result = {"wall": now[0] - self.began[0], "cpu": now[1] - self.began[1]}


def main(name: str, rounds: int, path: str, *settings: str) -> None:
    watch = Stopwatch()
    run_job(JOBS[name], rounds, path, watch, {"workers": 2, **dict(setting.split("=") for setting in settings)})
    print(json.dumps({**watch.result, **watch.peak}))


def run_job(job: Job, rounds: int, path: str, progress: Display, more: dict[str, Any]) -> None:
    """The job's rounds, one before them that warms up, and one after them whose model is scored."""
    with tempfile.TemporaryDirectory() as folder:
        run(
            "fedavg",
            data=f"npz:{path}",
            partition="iid",
            clients=job.clients,
            participation=job.per_round / job.clients,
            local_test=0.0,
            rounds=rounds + 2,
            epochs=1,
            batch=job.batch,
            lr=job.lr,
            model=job.model,
            eval_every=0,
            personal=False,
            out=Path(folder) / "run",
            progress=progress,
            **more,
        )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
