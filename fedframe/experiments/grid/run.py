"""Run many cells: what is finished is left alone, what was cut off goes on, and what fails does not stop the rest."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import time
import warnings
from collections import deque
from collections.abc import Generator, Sequence
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
from fedframe.experiments.grid.resources import Need, free_memory, workers_for_next
from fedframe.util.text import plural

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess

LOOK_EVERY = 0.25  # seconds between two looks at the display and at the memory
PATIENCE = 10.0  # seconds that a stopped cell has to write down what it has


@dataclass
class Lane:
    """A process that runs a cell."""

    cell: Cell
    process: ForkProcess
    pipe: Connection
    need: Need
    failed: str = ""


def run_cells(
    cells: Sequence[Cell], display: GridDisplay, *, cores: int | None = None, keep_state: bool = False
) -> dict[Path, Outcome]:
    """Run what is left of the cells; what has become of each, by folder.

    Cells of one folder are one cell. On CPUs each cell has a process of its own, one per core; on a GPU, and where
    processes cannot be forked, cells run here, one after the other. With `keep_state` a finished cell keeps its
    checkpoint and its clients' private state.
    """
    unique: dict[Path, Cell] = {}
    for cell in cells:
        unique.setdefault(cell.folder, cell)
    outcomes = {folder: outcome_of(cell) for folder, cell in unique.items()}
    todo = [outcome.cell for outcome in outcomes.values() if outcome.state == "waiting"]
    forked = "fork" in multiprocessing.get_all_start_methods() and all(c.settings.device == "cpu" for c in todo)
    runner = SideBySide(cores or available_cores(), keep_state) if forked else OneByOne(keep_state)
    try:
        # Closed, so that processes end here and now, whatever ends the loop.
        with display, contextlib.closing(runner.run(todo, display)) as settled:
            display.start([*outcomes.values()])
            for outcome in settled:
                outcomes[outcome.cell.folder] = outcome
                display.end(outcome)
    except KeyboardInterrupt as stop:
        done = sum(outcome_of(cell).state == "finished" for cell in unique.values())
        stop.add_note(f"{done} of {plural(len(unique), 'cell')} are finished and kept; the same command goes on.")
        raise
    return outcomes


def settle(cell: Cell, failed: str) -> Outcome:
    """What has become of a cell whose process has ended."""
    found = outcome_of(cell)
    return found if found.state != "waiting" else Outcome(cell, "failed", failed)


class OneByOne:
    """Cells in this process, one after the other."""

    def __init__(self, keep_state: bool) -> None:
        self.keep_state = keep_state

    def run(self, todo: Sequence[Cell], display: GridDisplay) -> Generator[Outcome, None, None]:
        """Outcomes as they come."""
        for cell in todo:
            reasons: list[str] = []

            def tell(news: dict[str, Any], cell: Cell = cell, reasons: list[str] = reasons) -> None:
                if "failed" in news:
                    reasons.append(news["failed"])
                else:
                    display.progress(cell, news["done"], news["rounds"], news["scores"])
                display.refresh()

            display.begin(cell)
            attempt(cell, cell.settings.workers or available_cores(), tell, self.keep_state)
            yield settle(cell, " ".join(reasons))


class SideBySide:
    """Cells in processes of their own, as many as cores and memory allow."""

    def __init__(self, cores: int, keep_state: bool) -> None:
        self.cores, self.keep_state = cores, keep_state
        self.context = multiprocessing.get_context("fork")
        self.lanes: list[Lane] = []
        self.largest = 0  # bytes that a cell has taken at most

    def run(self, todo: Sequence[Cell], display: GridDisplay) -> Generator[Outcome, None, None]:
        """Outcomes as they come."""
        waiting = deque(todo)
        release_free_memory()
        try:
            while waiting or self.lanes:
                self.start_what_fits(waiting, display)
                ready = wait([lane.pipe for lane in self.lanes], LOOK_EVERY)
                for lane in [lane for lane in self.lanes if lane.pipe in ready]:
                    if not self.listen(lane, display):
                        yield self.finish(lane)
                display.refresh()
        finally:
            self.stop()

    def start_what_fits(self, waiting: deque[Cell], display: GridDisplay) -> None:
        """Start cells while there are cores and memory for them."""
        while True:
            needs = [lane.need for lane in self.lanes]
            workers = workers_for_next(self.cores, needs, len(waiting), self.largest, free_memory())
            if not workers:
                return
            cell = waiting.popleft()
            display.begin(cell)
            self.lanes.append(self.start(cell, workers))

    def start(self, cell: Cell, workers: int) -> Lane:
        """Fork a process for a cell; it is no daemon, because it may have workers of its own."""
        here, there = self.context.Pipe(duplex=False)
        process = self.context.Process(target=work_on, args=(cell, workers, there, self.keep_state))
        with warnings.catch_warnings(), signals_blocked():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the displays here have none
            process.start()
        there.close()
        return Lane(cell, process, here, Need(workers))

    def listen(self, lane: Lane, display: GridDisplay) -> bool:
        """Take in what a process tells; False if it has nothing more to say."""
        try:
            news = json.loads(lane.pipe.recv_bytes())
        except (EOFError, OSError):
            return False
        if "failed" in news:
            lane.failed = news["failed"]
            return True
        if "memory" in news:
            lane.need.memory = max(lane.need.memory, int(news["memory"]))
            self.largest = max(self.largest, lane.need.memory)
        display.progress(lane.cell, news["done"], news["rounds"], news["scores"])
        return True

    def finish(self, lane: Lane) -> Outcome:
        """The end of a process, and what it has left."""
        lane.process.join()
        lane.pipe.close()
        self.lanes.remove(lane)
        return settle(lane.cell, lane.failed or f"Its process ended early ({exit_reason(lane.process)}).")

    def stop(self) -> None:
        """End the processes that still run; each first writes down what it has."""
        for lane in self.lanes:
            lane.process.terminate()
        deadline = time.monotonic() + PATIENCE
        for lane in self.lanes:
            lane.process.join(max(0.0, deadline - time.monotonic()))
            if lane.process.is_alive():
                lane.process.kill()
                lane.process.join()
            lane.pipe.close()
        self.lanes = []
