"""Fedframe beside a bare loop and beside the limit: `python -m benchmarks.speed [--rounds 5] [--repeats 3]`.

Each repeat runs the three one after the other, because the machine is noisy, and the ratios are taken within a repeat;
the median over repeats counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.jobs import JOBS, write_data


def measure(module: str, *arguments: object) -> dict[str, float]:
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def compare(name: str, rounds: int, repeats: int, path: Path) -> dict[str, Any]:
    ratios: dict[str, list[float]] = {}
    peak: dict[str, float] = {}
    for _ in range(repeats):
        bare = measure("loops", "bare", name, rounds, path)
        limit = measure("loops", "limit", name, rounds, path)
        ours = measure("ours", name, rounds, path)
        for unit in ("cpu", "wall"):
            ratios.setdefault(f"limit {unit}", []).append(limit[unit] / bare[unit])
            ratios.setdefault(f"fedframe {unit}", []).append(ours[unit] / bare[unit])
            ratios.setdefault(f"fedframe/limit {unit}", []).append(ours[unit] / limit[unit])
        peak = {kind: max(peak.get(kind, 0.0), ours[kind]) for kind in ("rss", "pss")}
        print(f"  job {name}: bare {bare}, limit {limit}, fedframe {ours}", file=sys.stderr, flush=True)
    return {"ratios": {key: median(values) for key, values in ratios.items()}, "all": ratios, "peak": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", default="A,B")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kind", default="uint8", choices=["uint8", "float32"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = write_data(Path(folder), options.kind)
        print("| job | what | CPU seconds / bare | wall / bare | CPU / limit | wall / limit | memory (MB) |")
        print("|---|---|---|---|---|---|---|")
        for name in options.jobs.split(","):
            job = JOBS[name]
            found = compare(name, options.rounds, options.repeats, path)
            ratios, peak = found["ratios"], found["peak"]
            what = f"{job.clients} clients x {job.samples_each}, {job.per_round} a round, batch {job.batch}"
            print(f"| {name} | limit: {what} | {ratios['limit cpu']:.3f} | {ratios['limit wall']:.3f} | 1 | 1 | |")
            print(
                f"| {name} | fedframe | {ratios['fedframe cpu']:.3f} | {ratios['fedframe wall']:.3f} | "
                f"{ratios['fedframe/limit cpu']:.3f} | {ratios['fedframe/limit wall']:.3f} | "
                f"{peak['pss']:.0f} (each process by itself, added up: {peak['rss']:.0f}) |"
            )


if __name__ == "__main__":
    main()
