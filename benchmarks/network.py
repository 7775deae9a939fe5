"""What a round over a network costs beside the training: `python -m benchmarks.network [--nodes 3] [--rounds 12]`.

A federation of real processes on this machine, as `engine = flower` starts it: TLS, a key per node, the SuperLink's
database on disk. A node has 20 samples and takes one step with `mlp`, so that hardly anything but the way there and
back is in a round; what the step takes in this process is measured and taken off. The first round waits for nets to be
built and is told apart. Processor seconds are those of all processes: they hardly depend on what else the machine does.
`--width` makes the model larger: 2048 is 0.6 MB, 100000 is 30 MB.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from fedframe.core.job import Job
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.jobs.build import JobMaker
from fedframe.jobs.gather import gather
from fedframe.network.flower import open_flower


def make_job(folder: Path, nodes: int, rounds: int, width: int, secure: bool) -> Job:
    """A run whose rounds are one step per client."""
    asked = {
        "method": "fedavg", "engine": "flower", "nodes": nodes, "clients": nodes, "rounds": rounds, "steps": 1,
        "model": f"mlp:{width}", "data": "digits", "partition": "iid", "data_share": nodes * 20 / 1000, "workers": 1,
        "eval_every": 0, "secure": secure,
    }  # fmt: skip
    return JobMaker(gather(asked, None), None, None).make(folder)


@dataclass(frozen=True)
class Spent:
    """Seconds of a round by the clock, and of the processors."""

    clock: float
    processor: float


def family(pid: int) -> list[int]:
    """A process and all that it has started: a node has started its SuperNode."""
    children = [
        int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()
    ]
    return [pid, *(each for child in children for each in family(child))]


def processor_seconds(pids: list[int]) -> float:
    """Of this process and others, to the nanosecond: Linux has a clock for every process."""
    return time.process_time() + sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


def run_rounds(server: Server, rounds: int, pids: list[int]) -> list[Spent]:
    """What each round takes."""
    found = []
    for number in range(1, rounds + 1):
        clock, processor = time.perf_counter(), processor_seconds(pids)
        record = server.run_round(number, lambda done, total: None)
        assert record.dropped == 0, "a reply was lost: this is not the round that was to be measured"
        server.round = number
        found.append(Spent(time.perf_counter() - clock, processor_seconds(pids) - processor))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--secure", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        job = make_job(Path(place), asked.nodes, asked.rounds, asked.width, asked.secure)
        began = time.perf_counter()
        engine = open_flower(job, print)
        try:
            print(f"start of a SuperLink and {asked.nodes} nodes: {time.perf_counter() - began:.1f} s")
            pids = [each for pid in engine.processes() for each in family(pid)]
            network = run_rounds(Server(job, engine, print), asked.rounds, pids)
        finally:
            engine.close()
        alone = InlineEngine(job)
        training = median(spent.clock for spent in run_rounds(Server(job, alone, print), asked.rounds, [])[1:])
        alone.close()
    later = sorted(spent.clock - training for spent in network[1:])
    busy = median(spent.processor for spent in network[1:])
    print(f"model of {4 * job.roles.layout.size / 1e6:.1f} MB; the same rounds in this process: {training:.3f} s each")
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    spread = f"best {later[0]:.2f} s, worst {later[-1]:.2f} s"
    print(f"first round {network[0].clock:.2f} s; after it without training: median {median(later):.2f} s, {spread}")
    print(f"processor seconds of all {len(pids) + 1} processes in a round: median {busy:.2f}")


if __name__ == "__main__":
    main()
