"""Fedframe on a job, with the meter of its peers: `python -m benchmarks.peers.ours D 5 job.npz 2 [vectorise=auto]`."""

from __future__ import annotations

import sys

from benchmarks.jobs import JOBS
from benchmarks.ours import run_job
from benchmarks.peers.meter import Meter
from fedframe.core.round_record import RoundRecord
from fedframe.runs.progress import Display


class Rounds(Display):
    """Tells the meter of every round but the last, whose model is scored."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def round(self, record: RoundRecord) -> None:
        if record.scores is None:
            self.meter.round()


def main(name: str, rounds: int, path: str, workers: int, *settings: str) -> None:
    meter = Meter()
    run_job(JOBS[name], rounds, path, Rounds(meter), {"workers": workers, **dict(each.split("=") for each in settings)})
    meter.report()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), *sys.argv[5:])
