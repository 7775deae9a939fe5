"""One cell from start to end, in this process or in one of its own that reports through a pipe."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedframe.engines.worker import prepare_process
from fedframe.errors import DivergedError, FedframeError, RunError
from fedframe.experiments.grid.cell import Cell, keep_divergence
from fedframe.experiments.grid.resources import peak_memory
from fedframe.jobs.build import JobMaker
from fedframe.jobs.inputs import InputFinder, changed_inputs
from fedframe.runs.folder import CONFIG, RunFolder
from fedframe.runs.progress import Display, scores_text
from fedframe.runs.round_files import CHECKPOINT, PREVIOUS
from fedframe.runs.session import execute
from fedframe.util.locate import own_error

if TYPE_CHECKING:
    from fedframe.core.job import Job
    from fedframe.core.round_record import RoundRecord

Report = Callable[[dict[str, Any]], None]
REPORT_EVERY = 0.5  # seconds between two reports from inside a round


class Reporter(Display):
    """Reports a run's progress to another process instead of showing it."""

    def __init__(self, report: Report) -> None:
        self.report, self.rounds, self.finished, self.scores, self._last_report = report, 1, 0, "", 0.0

    def start(self, job: Job, folder: Path, done: int) -> None:
        """Report how far the cell is."""
        self.rounds, self.finished = job.settings.rounds, done
        self.progress(done)

    def client(self, done: int, total: int) -> None:
        """Report a part of a round, but not after every client."""
        if self.finished < self.rounds and time.monotonic() - self._last_report > REPORT_EVERY:
            self.progress(self.finished + done / total)

    def round(self, record: RoundRecord) -> None:
        """Report a finished round, with its scores and the memory that the cell needs."""
        self.finished = record.round
        if record.scores is not None:
            self.scores = scores_text(record.scores)
        self.progress(record.round, memory=peak_memory())

    def stage(self, text: str) -> None:
        """Report what is done after the last round."""
        self.scores = text
        self.progress(self.rounds)

    def progress(self, done: float, **more: Any) -> None:
        """Report how many rounds are done."""
        self._last_report = time.monotonic()
        self.report({"done": done, "rounds": self.rounds, "scores": self.scores, **more})


def perform(cell: Cell, workers: int, report: Report, keep_state: bool, device: str | None = None) -> None:
    """Run what is left of a cell in this process; its errors are raised."""
    machine = {"workers": workers, "device": device or cell.settings.device}
    machine |= {name: getattr(cell.settings, name) for name in ("data_dir", "log")}
    folder = RunFolder(cell.folder)
    begun = (cell.folder / CONFIG).exists()
    settings = folder.settings() if begun else cell.settings
    # One thread from the first tensor on: a model's start has the same bits in every process of the grid.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        maker = JobMaker(settings.model_copy(update=machine), cell.data, cell.net)
        refuse_changed_inputs(cell)
        job = maker.make(cell.folder)
        if not begun:
            folder.write_inputs(cell.inputs)
            named = job.federation.source.user_names is not None
            folder.write_names(job.federation.names if named else None)
            folder.write_settings(maker.settings)  # last: with it the run has begun
        execute(job, folder, Reporter(report))
    finally:
        torch.set_num_threads(threads)
    if not keep_state:
        drop_state(cell.folder)


def refuse_changed_inputs(cell: Cell) -> None:
    """Refuse a file that was edited after the cell got its name: the result would be kept under the wrong one."""
    changed = changed_inputs(cell.inputs, InputFinder(lambda: cell.inputs).find(cell.settings, cell.net))
    if cell.inputs and changed:
        raise RunError(f"{', '.join(changed)} was changed meanwhile; the same command runs it as it is now.")


def drop_state(folder: Path) -> None:
    """Remove what only an unfinished run needs; over a hundred cells it would fill the disk."""
    with contextlib.suppress(OSError):
        for name in (PREVIOUS, CHECKPOINT):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / "clients", ignore_errors=True)


def attempt(cell: Cell, workers: int, report: Report, keep_state: bool, device: str | None = None) -> None:
    """The same, but an error is reported as a sentence, so that the other cells go on."""
    try:
        perform(cell, workers, report, keep_state, device)
    except DivergedError as error:
        keep_divergence(cell, str(error))
    except FedframeError as error:
        report({"failed": str(error)})
    except Exception as error:
        if not getattr(error, "__notes__", None):  # those with a note are in the log already
            RunFolder(cell.folder).log("".join(traceback.format_exception(error)))
        report({"failed": own_error(error) or f"{type(error).__name__}: {error}"})


def work_on(cell: Cell, workers: int, pipe: Connection, keep_state: bool, device: str | None = None) -> None:
    """Run one cell; the main function of its process."""
    prepare_process()
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # the parent's wish to stop; Ctrl-C itself is the parent's

    def report(update: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):
            pipe.send_bytes(json.dumps(update).encode())

    with contextlib.suppress(KeyboardInterrupt):  # finished rounds are on disk
        attempt(cell, workers, report, keep_state, device)
