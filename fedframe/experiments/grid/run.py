"""Run many cells: what is finished is left alone, what was cut off goes on, and what fails does not stop the rest."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import time
import warnings
from collections import deque
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedframe.engines.local import available_cores
from fedframe.engines.worker import release_free_memory, signals_blocked
from fedframe.engines.worker_pool import exit_reason
from fedframe.experiments.grid.cell import Cell, Outcome, outcome_of
from fedframe.experiments.grid.cell_process import attempt, work_on
from fedframe.experiments.grid.display import GridDisplay
from fedframe.experiments.grid.resources import Usage, free_memory, workers_for_next
from fedframe.jobs.devices import can_fork, check_device, device_names, resolve_device
from fedframe.util.text import plural

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess

LOOK_EVERY = 0.25  # seconds between two looks at the display and at the memory
PATIENCE = 10.0  # seconds that a stopped cell has to write down what it has


@dataclass
class RunningCell:
    """A cell that runs in a process of its own."""

    cell: Cell
    process: ForkProcess
    pipe: Connection
    usage: Usage
    device: str = "cpu"
    failed: str = ""


def run_cells(
    cells: Sequence[Cell], display: GridDisplay, *, cores: int | None = None, keep_state: bool = False
) -> dict[Path, Outcome]:
    """Run what is left of the cells; what has become of each, by folder.

    Cells of one folder are one cell. Each cell has a process of its own, one per core, or one per GPU; where processes
    cannot be forked, cells run here, one after the other. With `keep_state` a finished cell keeps its
    checkpoint and its clients' private state.
    """
    unique: dict[Path, Cell] = {}
    for cell in cells:
        unique.setdefault(cell.folder, cell)
    outcomes = {folder: outcome_of(cell) for folder, cell in unique.items()}
    todo = [outcome.cell for outcome in outcomes.values() if outcome.state == "waiting"]
    runner = make_runner({cell.settings.device for cell in todo}, cores or available_cores(), keep_state)
    try:
        # Closed, so that processes end here and now, whatever ends the loop.
        with display, contextlib.closing(runner.run(todo, display)) as results:
            display.start([*outcomes.values()])
            for outcome in results:
                outcomes[outcome.cell.folder] = outcome
                display.end(outcome)
    except KeyboardInterrupt as stop:
        done = sum(outcome_of(cell).state == "finished" for cell in unique.values())
        stop.add_note(f"{done} of {plural(len(unique), 'cell')} are finished and kept; the same command goes on.")
        raise
    return outcomes


def make_runner(devices: Collection[str], cores: int, keep_state: bool) -> SequentialRunner | ParallelRunner:
    """Cells in processes of their own where these can be forked and all cells have the same devices."""
    names = device_names(resolve_device(next(iter(devices)))) if len(devices) == 1 else ["cpu"]
    if not can_fork() or names[0].startswith("mps") or len(devices) > 1:
        return SequentialRunner(keep_state)
    check_device(",".join(names), several=True)
    return ParallelRunner(cores if names == ["cpu"] else len(names), keep_state, names)


def final_outcome(cell: Cell, failed: str) -> Outcome:
    """The outcome of a cell whose process has ended."""
    found = outcome_of(cell)
    return found if found.state != "waiting" else Outcome(cell, "failed", failed)


class SequentialRunner:
    """Cells in this process, one after the other."""

    def __init__(self, keep_state: bool) -> None:
        self.keep_state = keep_state

    def run(self, todo: Sequence[Cell], display: GridDisplay) -> Generator[Outcome, None, None]:
        """Outcomes as they come."""
        for cell in todo:
            reasons: list[str] = []

            def report(update: dict[str, Any], cell: Cell = cell, reasons: list[str] = reasons) -> None:
                if "failed" in update:
                    reasons.append(update["failed"])
                else:
                    display.progress(cell, update["done"], update["rounds"], update["scores"])
                display.refresh()

            display.begin(cell)
            attempt(cell, cell.settings.workers or available_cores(), report, self.keep_state)
            yield final_outcome(cell, " ".join(reasons))


class ParallelRunner:
    """Cells in processes of their own, as many as cores (or GPUs, with one each) and memory allow."""

    def __init__(self, cores: int, keep_state: bool, devices: Sequence[str] = ("cpu",)) -> None:
        self.cores, self.keep_state, self.devices = cores, keep_state, devices
        self.context = multiprocessing.get_context("fork")
        self.running: list[RunningCell] = []
        self.largest = 0  # bytes that a cell has taken at most

    def run(self, todo: Sequence[Cell], display: GridDisplay) -> Generator[Outcome, None, None]:
        """Outcomes as they come."""
        waiting = deque(todo)
        release_free_memory()
        try:
            while waiting or self.running:
                self.start_what_fits(waiting, display)
                ready = wait([running.pipe for running in self.running], LOOK_EVERY)
                for running in [each for each in self.running if each.pipe in ready]:
                    if not self.receive(running, display):
                        yield self.finish(running)
                display.refresh()
        finally:
            self.stop()

    def start_what_fits(self, waiting: deque[Cell], display: GridDisplay) -> None:
        """Start cells while there are cores and memory for them."""
        while True:
            usages = [running.usage for running in self.running]
            workers = workers_for_next(self.cores, usages, len(waiting), self.largest, free_memory())
            if not workers:
                return
            cell = waiting.popleft()
            display.begin(cell)
            self.running.append(self.start(cell, workers))

    def start(self, cell: Cell, workers: int) -> RunningCell:
        """Fork a process for a cell; it is no daemon, because it may have workers of its own."""
        here, there = self.context.Pipe(duplex=False)
        busy = [running.device for running in self.running]
        device = min(self.devices, key=busy.count)
        own = workers if device == "cpu" else cell.settings.workers or 1  # workers share the cell's GPU
        process = self.context.Process(target=work_on, args=(cell, own, there, self.keep_state, device))
        with warnings.catch_warnings(), signals_blocked():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the displays here have none
            process.start()
        there.close()
        return RunningCell(cell, process, here, Usage(workers), device)

    def receive(self, running: RunningCell, display: GridDisplay) -> bool:
        """Take one report of a process; False if there will be no more."""
        try:
            update = json.loads(running.pipe.recv_bytes())
        except (EOFError, OSError):
            return False
        if "failed" in update:
            running.failed = update["failed"]
            return True
        if "memory" in update:
            running.usage.memory = max(running.usage.memory, int(update["memory"]))
            self.largest = max(self.largest, running.usage.memory)
        display.progress(running.cell, update["done"], update["rounds"], update["scores"])
        return True

    def finish(self, running: RunningCell) -> Outcome:
        """Wait for the end of a process; the outcome of its cell."""
        running.process.join()
        running.pipe.close()
        self.running.remove(running)
        return final_outcome(
            running.cell, running.failed or f"Its process ended early ({exit_reason(running.process)})."
        )

    def stop(self) -> None:
        """End the processes that still run; each first writes its finished rounds."""
        for running in self.running:
            running.process.terminate()
        deadline = time.monotonic() + PATIENCE
        for running in self.running:
            running.process.join(max(0.0, deadline - time.monotonic()))
            if running.process.is_alive():
                running.process.kill()
                running.process.join()
            running.pipe.close()
        self.running = []
