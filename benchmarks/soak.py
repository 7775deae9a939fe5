"""A federation that runs on and on, and whether its processes grow: `python -m benchmarks.soak [--minutes 60]`.

Three nodes, the organiser's training and `serve` as the commands that they are, with SCAFFOLD (private states) under
secure aggregation (two more messages a round, records of masks), on a small net, so that a round is next to nothing but
what surrounds it. Every few seconds the memory of every process (the part that is its own alone, and the resident
set), its open descriptors, regular files among them, and threads are read. A line is fitted to each of them after the
first fifth of the time, in which caches fill.

Memory is called flat if it has grown by less than 3 % from the second quarter of the time to the last; handles, files
and threads are if their mean has grown by no more than one.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.commands import Federation, machine

NODES = ("north", "south", "west")
WHAT = ("own_mb", "resident_mb", "handles", "files", "threads")
GROWTH = 0.03  # of memory, beyond which it is not called flat
POINTS = 60  # of each series that are kept in the result
Sample = tuple[float, ...]


def look(process: psutil.Process) -> Sample:
    """What a process has at this moment, in the order of `WHAT`."""
    memory = process.memory_full_info()
    return memory.uss / 1e6, memory.rss / 1e6, process.num_fds(), len(process.open_files()), process.num_threads()


def folder_megabytes(folder: Path) -> float:
    """The size of what lies below a folder; files may go meanwhile."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.exists()) / 1e6


def summarise(times: list[float], values: list[float], memory: bool) -> dict[str, Any]:
    """Level, slope per hour with its standard error, and whether it is flat."""
    t, v = np.array(times) / 3600, np.array(values)
    late = t >= t[0] + 0.2 * (t[-1] - t[0])
    centred = t[late] - t[late].mean()
    slope = float(centred @ v[late] / (centred @ centred))
    rest = v[late] - v[late].mean() - slope * centred
    error = float(np.sqrt(rest @ rest / max(1, late.sum() - 2) / (centred @ centred)))
    quarter = (t - t[0]) / (t[-1] - t[0]) * 4
    second, last = v[(quarter >= 1) & (quarter < 2)], v[quarter >= 3]
    flat = last.mean() <= (1 + GROWTH) * second.mean() if memory else last.mean() <= second.mean() + 1
    return {
        "second_quarter": float(second.mean()),
        "last_quarter": float(last.mean()),
        "most": float(v.max()),
        "slope_per_hour": slope,
        "standard_error": error,
        "flat": bool(flat),
    }


def thinned(values: list[float]) -> list[float]:
    """At most `POINTS` of them, evenly."""
    chosen = np.unique(np.linspace(0, len(values) - 1, POINTS).round().astype(int))
    return [round(values[i], 2) for i in chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--every", type=float, default=15, help="seconds between two looks")
    parser.add_argument("--out", type=Path, default=Path("soak.json"))
    parser.add_argument("--plain", action="store_true", help="without secure aggregation")
    asked = parser.parse_args()
    settings = [
        "--method",
        "scaffold",
        "--rounds",
        "100000",
        "--model",
        "mlp:16",
        *([] if asked.plain else ["--secure"]),
    ]
    with tempfile.TemporaryDirectory() as place, Federation(Path(place), NODES, settings) as federation:
        for node in NODES:
            federation.join(node)
        federation.run("start", "start", "clinic")
        federation.wait_for_rounds(3, 600)  # everything is imported and built
        series: dict[str, list[tuple[float, Sample]]] = {}
        disk: list[tuple[float, int, float]] = []
        began, first = time.monotonic(), len(federation.metrics())
        while (now := time.monotonic() - began) < 60 * asked.minutes:
            federation.check_alive()
            for name, process in federation.processes().items():
                try:
                    series.setdefault(name, []).append((now, look(process)))
                except psutil.NoSuchProcess:
                    continue
            disk.append((now, len(federation.metrics()), folder_megabytes(Path(place))))
            time.sleep(asked.every)
        metrics = federation.metrics()
    found: dict[str, Any] = {
        "what": "SCAFFOLD, mlp:16, three nodes" + ("" if asked.plain else ", secure aggregation"),
        "machine": machine(),
        "seconds": now,
        "rounds": len(metrics) - first,
        "dropped": sum(line["dropped"] for line in metrics),
        "disk_kb_per_round": 1000 * (disk[-1][2] - disk[0][2]) / max(1, disk[-1][1] - disk[0][1]),
        "processes": {},
    }
    print(f"{found['rounds']} rounds in {now / 60:.0f} minutes, {found['dropped']} replies dropped; "
          f"{found['disk_kb_per_round']:.1f} kB of disk a round in all folders together")  # fmt: skip
    for name, looks in series.items():
        times = [when for when, _ in looks]
        if times[-1] - times[0] < 0.9 * now:
            print(f"{name}: not there all the time, {len(times)} of {len(disk)} looks")
            continue
        summary = {what: summarise(times, [each[i] for _, each in looks], i < 2) for i, what in enumerate(WHAT)}
        series_of = {what: thinned([each[i] for _, each in looks]) for i, what in enumerate(WHAT)}
        found["processes"][name] = summary | {"at_seconds": thinned(times), "series": series_of}
        for what, each in summary.items():
            print(f"{name:28} {what:12} {each['second_quarter']:8.1f} -> {each['last_quarter']:8.1f}, "
                  f"{each['slope_per_hour']:+8.2f} ± {each['standard_error']:.2f} an hour, "
                  f"{'flat' if each['flat'] else 'NOT FLAT'}")  # fmt: skip
    asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
