"""From the shell to the first finished round of the default run: `python -m benchmarks.start [--repeats 5]`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median


def first_round(folder: Path) -> float:
    """Seconds until metrics.jsonl has a line."""
    program = Path(sys.executable).with_name("fedframe")
    began = time.perf_counter()
    process = subprocess.Popen([program, "run", "fedavg", "--out", folder / "run"], stdout=subprocess.DEVNULL)
    while not (folder / "run" / "metrics.jsonl").exists():
        if process.poll() is not None:
            sys.exit("the run ended before its first round")
        time.sleep(0.01)
    seconds = time.perf_counter() - began
    process.wait()
    return seconds


def help_seconds() -> float:
    program = Path(sys.executable).with_name("fedframe")
    began = time.perf_counter()
    subprocess.run([program, "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    starts, helps = [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            starts.append(first_round(Path(folder)))
        helps.append(help_seconds())
    print(f"shell to first finished round: median {median(starts):.2f} s, worst {max(starts):.2f} s")
    print(f"fedframe --help: median {median(helps):.2f} s, worst {max(helps):.2f} s")


if __name__ == "__main__":
    main()
