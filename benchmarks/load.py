"""A federation under load, on this machine: `python -m benchmarks.load nodes`, `... slow_line`, `... simulation`.

`nodes`: many real node processes (`--nodes 12`), a few small rounds; how long they take, and what all processes need.
`slow_line`: three nodes and a model of 10 MB, one of them behind a line of 1 Mbit/s each way (a proxy on loopback):
what a round takes, and what has passed the line.
`simulation`: many nodes (`--nodes 50`) in Flower's simulation, or with `--engine local` in worker processes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil

import fedframe
from benchmarks.commands import Federation, machine
from fedframe.federation.kit import Kit
from fedframe.util.processes import free_ports
from tests.federation.proxy import SlowLine

SECONDS = 3600.0  # a ceiling
FEATURES, WIDTH = 1000, 2490  # of the slow line's net: 2.5 million numbers


class MemoryWatch:
    """The most memory that some processes have taken together, their shared pages counted once for each."""

    def __init__(self, federation: Federation) -> None:
        self.federation, self.most, self.processes = federation, 0.0, 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        while not self.over.wait(2.0):
            sizes = []
            for process in self.federation.processes().values():
                try:
                    sizes.append(process.memory_full_info().uss)
                except psutil.Error:
                    continue
            self.most, self.processes = max(self.most, sum(sizes) / 1e6), max(self.processes, len(sizes))

    def close(self) -> None:
        self.over.set()
        self.thread.join()


def rounds_of(metrics: list[dict[str, Any]]) -> dict[str, Any]:
    """What rounds took and lost."""
    seconds = [line["seconds"] for line in metrics]
    return {
        "rounds": len(metrics),
        "seconds": [round(each, 1) for each in seconds],
        "median_seconds": round(median(seconds), 1),
        "dropped": sum(line["dropped"] for line in metrics),
        "loss": [round(line["loss"], 4) for line in metrics],
    }


def many_nodes(nodes: int, rounds: int) -> dict[str, Any]:
    """Real processes, one node each."""
    names = [f"n{number:02d}" for number in range(nodes)]
    settings = ["--method", "scaffold", "--rounds", str(rounds), "--model", "mlp:16"]
    with tempfile.TemporaryDirectory() as place, Federation(Path(place), names, settings) as federation:
        watch, began = MemoryWatch(federation), time.monotonic()
        for name in names:
            federation.join(name)
        federation.run("start", "start", "clinic")
        federation.wait_for_end(SECONDS)
        watch.close()
        return {
            "what": f"{nodes} real nodes, SCAFFOLD, mlp:16",
            "from_start_to_end": round(time.monotonic() - began, 1),
            "processes": watch.processes,
            "own_memory_mb": round(watch.most),
            **rounds_of(federation.metrics()),
        }


def slow_line(megabits: float, rounds: int) -> dict[str, Any]:
    """One of three nodes behind a slow line."""
    names = ("north", "south", "west")
    settings = ["--rounds", str(rounds), "--model", f"mlp:{WIDTH}", "--no-personal", "--score-bins", "0"]
    with tempfile.TemporaryDirectory() as place, Federation(Path(place), names, settings, FEATURES) as federation:
        dialled, began = free_ports(1)[0], time.monotonic()
        line = SlowLine(dialled, federation.port, megabits * 1e6)
        kit = Kit.read(federation.folder / "clinic/kits/north-kit.zip")
        slow = dataclasses.replace(kit, agreement=dataclasses.replace(kit.agreement, port=dialled))
        slow.write(federation.folder / "north.zip")
        federation.join("north", "north.zip")
        federation.join("south")
        federation.join("west")
        federation.run("start", "start", "clinic")
        federation.wait_for_end(SECONDS)
        line.close()
        return {
            "what": f"three nodes, a net of {4 * (FEATURES * WIDTH + WIDTH + 3 * WIDTH + 3) / 1e6:.1f} MB, one node "
            f"behind {megabits:g} Mbit/s",
            "from_start_to_end": round(time.monotonic() - began, 1),
            "megabytes_up": round(line.up.passed / 1e6, 1),
            "megabytes_down": round(line.down.passed / 1e6, 1),
            "lost_lines": federation.whole_log("north").count("Lost the organiser"),
            **rounds_of(federation.metrics()),
        }


def simulation(nodes: int, rounds: int, engine: str) -> dict[str, Any]:
    """Many nodes in Flower's simulation or on the local engine."""
    with tempfile.TemporaryDirectory() as place:
        began = time.monotonic()
        folder = Path(place) / "run"
        nodes_too: dict[str, Any] = {} if engine == "local" else {"nodes": nodes}
        fedframe.run(
            "scaffold", data="digits", partition="dirichlet:0.3", clients=nodes, min_client_size=4, model="mlp:16",
            rounds=rounds, engine=engine, out=folder, progress=False, **nodes_too,
        )  # fmt: skip
        metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return {
            "what": f"{nodes} clients, engine = {engine}, SCAFFOLD, mlp:16, digits",
            "from_start_to_end": round(time.monotonic() - began, 1),
            **rounds_of(metrics),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["nodes", "slow_line", "simulation"])
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabits", type=float, default=1.0)
    parser.add_argument("--engine", default="flower-sim")
    parser.add_argument("--out", type=Path, help="a JSON file to which the result is added")
    asked = parser.parse_args()
    before = machine()
    if asked.what == "nodes":
        found = many_nodes(asked.nodes or 12, asked.rounds)
    elif asked.what == "slow_line":
        found = slow_line(asked.megabits, asked.rounds)
    else:
        found = simulation(asked.nodes or 50, asked.rounds, asked.engine)
    found["machine"] = {**before, "load_after": machine()["load"]}
    print(json.dumps(found, indent=1))
    if asked.out is not None:
        kept = json.loads(asked.out.read_text()) if asked.out.exists() else {}
        name = asked.what if asked.what != "simulation" else f"{asked.what}_{asked.engine}"
        asked.out.write_text(json.dumps({**kept, name: found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
