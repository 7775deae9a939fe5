"""One progress display for many cells: live bars on a terminal, plain lines elsewhere, nothing when not wanted.

No display here has a thread: cells are forked while it is shown, and a fork copies locks that a thread may hold.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedframe.core.measures import is_share
from fedframe.experiments.grid.cell import Cell, Outcome
from fedframe.util.display import ProgressDisplay, choose, print_line, start_bars
from fedframe.util.text import duration, figure, plural

if TYPE_CHECKING:
    from rich.progress import TaskID

STATUS_EVERY = 60.0  # seconds between two plain lines on cells that are under way
REFRESH_EVERY = 0.25  # seconds; each refresh takes time from the cells


class GridDisplay(ProgressDisplay):
    """Keeps count and shows nothing; the base of the other displays of cells."""

    def open(self) -> None:
        """Begin to count."""
        self.total = self.completed = 0
        self.shares: dict[str, float] = {}  # of cells under way, by name
        self.gained = 0.0  # cells' worth of work done since the start
        self.resumed: dict[str, float] = {}  # what cells under way had done before
        self.began = time.monotonic()

    def start(self, outcomes: Sequence[Outcome]) -> None:
        """The work begins; some cells may have an outcome already."""
        self.total = len(outcomes)
        self.completed = sum(outcome.state != "waiting" for outcome in outcomes)

    def begin(self, cell: Cell) -> None:
        """A cell begins, or goes on."""
        self.shares[cell.name] = 0.0

    def progress(self, cell: Cell, done: float, rounds: int, scores: str) -> None:
        """`done` of a cell's rounds are finished."""
        share = done / max(1, rounds)  # a method without rounds has one piece of work
        self.shares[cell.name] = share
        self.resumed.setdefault(cell.name, share)

    def end(self, outcome: Outcome) -> None:
        """A cell has an outcome."""
        self.completed += 1
        self.shares.pop(outcome.cell.name, None)
        self.gained += 1 - self.resumed.pop(outcome.cell.name, 0.0)

    def refresh(self) -> None:
        """Called often, so that a display can draw."""

    def left(self) -> str:
        """How long the rest may take, if all cells are alike."""
        under_way = sum(share - self.resumed.get(name, 0.0) for name, share in self.shares.items())
        gained = self.gained + under_way
        missing = self.total - self.completed - sum(self.shares.values())
        if gained < 0.02:
            return ""
        return f"about {duration((time.monotonic() - self.began) * missing / gained)} left"


class PlainGridDisplay(GridDisplay):
    """Prints a line when a cell has an outcome, and one a minute on those under way."""

    def start(self, outcomes: Sequence[Outcome]) -> None:
        """Print how much there is to do."""
        super().start(outcomes)
        self.line(f"{plural(self.total, 'run')}, {self.completed} of them finished before.")
        self.update: dict[str, str] = {}
        self.last_line = time.monotonic()

    def progress(self, cell: Cell, done: float, rounds: int, scores: str) -> None:
        """Keep the progress for the next line."""
        super().progress(cell, done, rounds, scores)
        self.update[cell.name] = f"{cell.name}: round {int(done)}/{rounds}  {scores}".rstrip()

    def end(self, outcome: Outcome) -> None:
        """Print the outcome of a cell."""
        super().end(outcome)
        self.update.pop(outcome.cell.name, None)
        self.line(f"{self.completed}/{self.total}  {result_text(outcome)}  {self.left()}".rstrip())

    def refresh(self) -> None:
        """Print once a minute how far cells are that take long."""
        if self.update and time.monotonic() - self.last_line > STATUS_EVERY:
            self.line("  ".join([*self.update.values(), self.left()]))

    def line(self, text: str) -> None:
        """Print a line, and keep the time of it."""
        self.last_line = time.monotonic()
        print_line(text)


class LiveGridDisplay(GridDisplay):
    """A bar for all cells and one for each that is under way."""

    def open(self) -> None:
        """Start drawing, without a thread."""
        super().open()
        self.bars = start_bars("text", auto_refresh=False)
        self.tasks: dict[str, TaskID] = {}
        self.drawn = 0.0

    def close(self) -> None:
        """Remove the bars of cells that were under way, and stop drawing."""
        for task in self.tasks.values():
            self.bars.remove_task(task)
        self.bars.stop()

    def start(self, outcomes: Sequence[Outcome]) -> None:
        """Draw the bar for all."""
        super().start(outcomes)
        self.all = self.bars.add_task("all runs", total=self.total, completed=self.completed, text="")

    def begin(self, cell: Cell) -> None:
        """Draw the cell's bar."""
        super().begin(cell)
        self.tasks[cell.name] = self.bars.add_task(cell.name, total=cell.settings.rounds, text="loading")

    def progress(self, cell: Cell, done: float, rounds: int, scores: str) -> None:
        """Move the cell's bar."""
        super().progress(cell, done, rounds, scores)
        self.bars.update(self.tasks[cell.name], completed=int(done * 10) / 10, total=rounds, text=scores)

    def end(self, outcome: Outcome) -> None:
        """Replace the cell's bar by a line."""
        super().end(outcome)
        if outcome.cell.name in self.tasks:
            self.bars.remove_task(self.tasks.pop(outcome.cell.name))
        style = None if outcome.state == "finished" else "yellow"
        self.bars.print(result_text(outcome), style=style, markup=False, highlight=False)
        self.bars.update(self.all, completed=self.completed, text=self.left())

    def refresh(self) -> None:
        """Draw, but not too often."""
        if time.monotonic() - self.drawn > REFRESH_EVERY:
            self.drawn = time.monotonic()
            self.bars.update(self.all, completed=self.completed, text=self.left())
            self.bars.refresh()


def result_text(outcome: Outcome) -> str:
    """The outcome of a cell in one line."""
    name = outcome.cell.name
    if outcome.state != "finished":
        return f"{name}: {outcome.state}. {outcome.reason}"
    scores, seconds = outcome.summary["scores"], outcome.summary["seconds"]
    share = is_share(str(outcome.summary.get("metric", "accuracy")))
    found = [f"{kind} {figure(scores[kind]['final'], share)}" for kind in scores if scores[kind]["final"] is not None]
    return f"{name}: {', '.join(found)} in {duration(seconds)}"


def choose_grid_display(progress: bool) -> GridDisplay:
    """The display that suits where the output goes."""
    return choose(progress, GridDisplay, PlainGridDisplay, LiveGridDisplay)
