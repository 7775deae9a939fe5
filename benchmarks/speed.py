"""Fedframe beside a bare loop and beside the limit: `python -m benchmarks.speed --jobs A,D --rounds 5 --repeats 3`.

Each repeat runs all of them one after the other, because the machine is noisy, and ratios are taken within a repeat;
the median over repeats counts. The limit keeps freed memory as Fedframe's workers do (`--limit ""`: it does not).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.jobs import JOBS, write_data

QUICK = {"A": (2, 3), "B": (2, 3), "C-resnet20": (1, 2), "C-vgg11": (1, 1), "D": (10, 3)}  # rounds and repeats
VARIANTS = {"C-resnet20": ["precision=bf16"], "C-vgg11": ["precision=bf16"], "D": ["vectorise=auto"]}


def measure(module: str, *arguments: object) -> dict[str, float]:
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def compare(name: str, rounds: int, repeats: int, path: Path, extra: str) -> dict[str, Any]:
    """Every repeat's seconds, and the medians of their ratios to the bare loop and to the limit."""
    runs: list[dict[str, dict[str, float]]] = []
    for _ in range(repeats):
        found = {
            "bare": measure("loops", "bare", name, rounds, path),
            "limit": measure("loops", "limit", name, rounds, path, extra),
            "fedframe": measure("ours", name, rounds, path),
        }
        for variant in VARIANTS.get(name, []):
            found[f"fedframe {variant}"] = measure("ours", name, rounds, path, variant)
        runs.append(found)
        print(f"  job {name}: {found}", file=sys.stderr, flush=True)
    ratios = {
        who: {
            f"{unit}/{base}": [run[who][unit] / run[base][unit] for run in runs]
            for unit in ("cpu", "wall")
            for base in ("bare", "limit", "fedframe")
        }
        for who in runs[0]
    }
    medians = {who: {key: median(values) for key, values in each.items()} for who, each in ratios.items()}
    load = [round(each, 1) for each in os.getloadavg()]
    found = {"job": str(JOBS[name]), "rounds": rounds, "load": load}
    return {**found, "runs": runs, "ratios": ratios, "median": medians}


def row(name: str, who: str, found: dict[str, Any]) -> str:
    ratio, values = found["median"][who], found["ratios"][who]["cpu/limit"]
    peak = max(run[who].get("pss", 0.0) for run in found["runs"])
    memory = f"{peak:.0f}" if peak else ""
    spread = f"{ratio['cpu/limit']:.2f} ({min(values):.2f} to {max(values):.2f})"
    return f"| {name} | {who} | {ratio['cpu/bare']:.2f} | {ratio['wall/bare']:.2f} | {spread} | {memory} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few rounds and repeats of every job: seven minutes or so")
    parser.add_argument("--kind", default="uint8", choices=["uint8", "float32"])
    parser.add_argument("--limit", default="keep-memory", help="keep-memory, strides, both or nothing")
    parser.add_argument("--out", type=Path, help="add all figures to this JSON file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print("| job | what | CPU / bare | wall / bare | CPU / limit | memory (MB) |\n|---|---|---|---|---|---|")
        for name in options.jobs.split(","):
            job = JOBS[name]
            path = write_data(Path(folder), job, options.kind)
            rounds, repeats = QUICK[name] if options.quick else (options.rounds, options.repeats)
            found = compare(name, rounds, repeats, path, options.limit)
            print(f"| {name} | {job} | | | | |")
            for who in found["median"]:
                if who != "bare":
                    print(row(name, who, found), flush=True)
            if options.out is not None:
                known = json.loads(options.out.read_text()) if options.out.exists() else {}
                options.out.write_text(json.dumps({**known, name: found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
