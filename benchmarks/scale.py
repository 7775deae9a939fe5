"""A round with 100,000 clients beside one with 1,000: `python -m benchmarks.scale`.

Small vectors, `mlp`, 50 clients a round, with and without private state per client on disk. A round must cost what its
sampled clients cost, and memory must grow by little more than the data.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

EACH, DIM, CLASSES, PER_ROUND = 16, 8, 10, 50


def write_data(folder: Path, clients: int) -> Path:
    path = folder / f"{clients}.npz"
    draw = np.random.default_rng(0)
    y = draw.integers(0, CLASSES, clients * EACH)
    x = draw.normal(0, 1, (len(y), DIM)).astype(np.float32) + y[:, None].astype(np.float32) / 3
    np.savez(
        path,
        x_train=x,
        y_train=y,
        x_test=x[:2000],
        y_test=y[:2000],
        user_train=np.repeat(np.arange(clients), EACH),
    )
    return path


def measure(path: Path, clients: int, private: bool, rounds: int) -> None:
    """Run in a process of its own: median seconds of a round, megabytes of all processes."""
    from benchmarks.ours import children, memory
    from fedframe.api import run
    from fedframe.core.round_record import RoundRecord
    from fedframe.runs.progress import Display

    class Watch(Display):
        def __init__(self) -> None:
            self.seconds: list[float] = []
            self.peak = {"rss": 0.0, "pss": 0.0}
            self.last = time.perf_counter()

        def round(self, record: RoundRecord) -> None:
            now = time.perf_counter()
            self.seconds.append(now - self.last)
            if record.round % 10 == 0:
                used = memory([os.getpid(), *children()])
                self.peak = {kind: max(value, used[kind]) for kind, value in self.peak.items()}
            self.last = time.perf_counter()

    watch = Watch()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run("fedavg", data=f"npz:{path}", partition="user", participation=PER_ROUND / clients, rounds=rounds, epochs=2,
            batch=8, lr=0.05, momentum=0.9, model="mlp", keep_optimizer=private, eval_every=5, personal=False,
            workers=2, out=Path(folder) / "run", progress=watch)  # fmt: skip
    total = time.perf_counter() - began
    print(json.dumps({"round": median(watch.seconds[2:]), "total": total, **watch.peak}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--one", nargs=3, metavar=("PATH", "CLIENTS", "PRIVATE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure(Path(options.one[0]), int(options.one[1]), options.one[2] == "1", options.rounds)
        return
    print("| private state | clients | round (s) | whole run (s) | memory (MB, shared pages once) | (every process) |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for private in (0, 1):
            found = []
            for clients in (1_000, 100_000):
                path = write_data(Path(folder), clients)
                command = [sys.executable, "-m", "benchmarks.scale", "--rounds", str(options.rounds)]
                command += ["--one", str(path), str(clients), str(private)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    sys.exit(done.stderr)
                result = json.loads(done.stdout.splitlines()[-1])
                found.append(result)
                print(f"| {'yes' if private else 'no'} | {clients:,} | {result['round']:.4f} | {result['total']:.1f} | "
                      f"{result['pss']:.0f} | {result['rss']:.0f} |", flush=True)  # fmt: skip
            small, large = found
            print(f"| | ratio, growth | {large['round'] / small['round']:.2f} | | "
                  f"+{large['pss'] - small['pss']:.0f} | +{large['rss'] - small['rss']:.0f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
