"""Fedframe on a job, with the meter of its peers: `python -m benchmarks.peers.ours D 5 job.npz 2 [vectorise=auto]`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.jobs import JOBS
from benchmarks.peers.meter import Meter
from fedframe.api import run
from fedframe.core.round_record import RoundRecord
from fedframe.runs.progress import Display


class Rounds(Display):
    """Tells the meter of every round."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def round(self, record: RoundRecord) -> None:
        self.meter.round()


def main(name: str, rounds: int, path: str, workers: int, *settings: str) -> None:
    job, meter = JOBS[name], Meter()
    more: dict[str, Any] = dict(setting.split("=") for setting in settings)
    with tempfile.TemporaryDirectory() as folder:
        run(
            "fedavg",
            data=f"npz:{path}",
            partition="iid",
            clients=job.clients,
            participation=job.per_round / job.clients,
            local_test=0.0,
            rounds=rounds + 1,
            epochs=1,
            batch=job.batch,
            lr=job.lr,
            model=job.model,
            eval_every=0,
            personal=False,
            workers=workers,
            out=Path(folder) / "run",
            progress=Rounds(meter),
            **more,
        )
    meter.report()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), *sys.argv[5:])
