"""Fedframe beside its peers: `python -m benchmarks.peers --jobs D --rounds 5 --repeats 3 [--pfl-python ...]`.

Each repeat runs all frameworks one after the other on the same job, and ratios to Fedframe are taken within a repeat:
what else the machine does hits all alike. With two processes Fedframe stands beside Flower, with one beside
pfl-research, which has no more. A framework that is not installed is named, and left out; so is one that has not ended
after `--most-seconds`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.jobs import JOBS, write_data

PAIRS = {"flower": ("fedframe, 2 processes", 2), "pfl_research": ("fedframe, 1 process", 1)}
UNITS = ("cpu", "wall", "pss")


def measure(python: str, module: str, *arguments: object, most_seconds: float) -> dict[str, float] | str:
    """A framework's figures, or why there are none."""
    command = [python, "-m", f"benchmarks.peers.{module}", *map(str, arguments)]
    # Into files: whatever a framework has started keeps a pipe open, and would be waited for.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors)
        try:
            code = process.wait(most_seconds)
        except subprocess.TimeoutExpired:
            return f"it had not ended after {most_seconds:g} seconds (--most-seconds)"
        finally:
            end(process)
        out.seek(0)
        errors.seek(0)
        if code:
            said = errors.read().strip().splitlines()
            return said[-1] if said else f"exit code {code}"
        result: dict[str, float] = json.loads(out.read().strip().splitlines()[-1])
    return result


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process, if it has not ended by itself, and all that it has started."""
    if process.poll() is None:
        started = psutil.Process(process.pid).children(recursive=True)
        for each in (*started, process):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()
        psutil.wait_procs(started, timeout=10)  # on a busy machine they take a moment to end


def compare(name: str, peers: list[str], options: argparse.Namespace, path: Path) -> dict[str, Any]:
    """The figures of every repeat, and the medians of the ratios of each peer to Fedframe."""
    runs: list[dict[str, dict[str, float]]] = []
    absent: dict[str, str] = {}
    bound = {"most_seconds": options.most_seconds}
    variants: list[list[str]] = [[], *([["vectorise=auto"]] if JOBS[name].model == "mlp" else [])]
    for repeat in range(options.repeats):
        found: dict[str, dict[str, float]] = {}
        for peer in peers:
            ours, workers = PAIRS[peer]
            python = options.pfl_python if peer == "pfl_research" else sys.executable
            for variant in variants:
                label = " ".join([ours, *variant])
                mine = measure(sys.executable, "ours", name, options.rounds, path, workers, *variant, **bound)
                if isinstance(mine, str):
                    sys.exit(f"{label} failed: {mine}")
                found[label] = mine
            theirs = measure(python, peer, name, options.rounds, path, workers, **bound)
            if isinstance(theirs, str):
                absent[peer] = theirs
                print(f"{peer} is left out: {theirs}", file=sys.stderr)
            else:
                found[peer] = theirs
        peers = [peer for peer in peers if peer not in absent]
        runs.append(found)
        print(f"  job {name}, repeat {repeat + 1}: {found}", file=sys.stderr, flush=True)
    ratios = {
        f"{peer} / {ours}": {unit: median(run[peer][unit] / run[ours][unit] for run in runs) for unit in UNITS}
        for peer in peers
        for ours in runs[0]
        if ours.startswith(PAIRS[peer][0])
    }
    load = [round(each, 1) for each in os.getloadavg()]
    result = {"job": str(JOBS[name]), "rounds": options.rounds, "load": load, "runs": runs, "ratios": ratios}
    return {**result, "absent": absent} if absent else result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default="A,B,C-resnet20,D")
    parser.add_argument("--peers", default=",".join(PAIRS))
    parser.add_argument("--rounds", type=int, default=3, help="that are counted; one more comes before them")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="jobs A, B and D, three rounds, two repeats: minutes")
    parser.add_argument("--pfl-python", default=sys.executable, help="the interpreter that has pfl-research")
    parser.add_argument("--most-seconds", type=float, default=1800.0, help="that a framework may take for a job")
    parser.add_argument("--out", type=Path, help="add all figures to this JSON file")
    options = parser.parse_args()
    if options.quick:
        options.jobs, options.rounds, options.repeats = "A,B,D", 3, 2
    print("| job | what | CPU | wall | memory |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.jobs.split(","):
            path = write_data(Path(folder), JOBS[name])
            found = compare(name, options.peers.split(","), options, path)
            for who, ratio in found["ratios"].items():
                print(f"| {name} | {who} | {' | '.join(f'{ratio[unit]:.2f}' for unit in UNITS)} |", flush=True)
            if options.out is not None:
                known = json.loads(options.out.read_text()) if options.out.exists() else {}
                options.out.write_text(json.dumps({**known, name: found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
