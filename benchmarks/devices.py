"""How fast the devices of a machine are: `python -m benchmarks.devices [--devices cpu,cuda:0] [--workers 1,2,4]`.

Runs one job on every device with every number of processes per device, and prints a table to paste into an issue, with
what the machine is. Fedframe was developed without a GPU, so tables of machines that have one are welcome.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.jobs import JOBS, write_data
from fedframe.jobs.devices import resolve_device


def machine() -> str:
    """Versions and GPUs, asked in a process of its own."""
    code = (
        "import torch\n"
        "print([torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] or 'no CUDA device')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    gpus = done.stdout.strip() or done.stderr.strip().splitlines()[-1]
    return f"{platform.platform()}, Python {platform.python_version()}, torch {torch.__version__}; {gpus}"


def seconds(job: str, rounds: int, path: Path, device: str, workers: int) -> str:
    """The wall time of a round, or what went wrong."""
    settings = [f"device={device}", f"workers={workers}"]
    command = [sys.executable, "-m", "benchmarks.ours", job, str(rounds), str(path), *settings]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    return f"{json.loads(done.stdout.splitlines()[-1])['wall'] / rounds:.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    everything = resolve_device("auto")
    devices = ["cpu"] if everything == "cpu" else ["cpu", everything.partition(",")[0], everything]
    parser.add_argument("--devices", default=";".join(dict.fromkeys(devices)), help="separated by semicolons")
    parser.add_argument("--workers", default="1,2,4", help="processes, separated by commas")
    parser.add_argument("--jobs", default="C-resnet20,D")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    print(machine() + "\n\n| job | device | workers | wall time of a round |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.jobs.split(","):
            path = write_data(Path(folder), JOBS[name])
            for device in options.devices.split(";"):
                for workers in map(int, options.workers.split(",")):
                    took = seconds(name, options.rounds, path, device, workers)
                    print(f"| {name} | {device} | {workers} | {took} |", flush=True)


if __name__ == "__main__":
    main()
