"""Runs that wait at a known point until they are killed: no test has to be quick enough on a busy machine."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedframe.runs.folder import LOCK
from fedframe.runs.session import Session

ROOT = Path(__file__).parents[1]
DEADLINE = 900.0  # seconds: far more than anything takes, so that only a hang reaches it
PROGRAM = "from tests.hold import hold; hold({rounds}, {finished}); from fedframe.cli import main; main()"


def hold(rounds: int = 0, finished: int = 0) -> None:
    """Have every run of this process wait after so many rounds, once so many runs below the folder are finished."""
    original = Session.finish_round

    def finish_round(self: Session, record: Any) -> None:
        original(self, record)
        while record.round >= rounds and count_finished(Path.cwd()) >= finished:
            time.sleep(0.01)

    Session.finish_round = finish_round  # type: ignore[method-assign]


def count_finished(folder: Path) -> int:
    """How many runs below a folder are finished; unlike a glob, a walk does not mind folders that vanish meanwhile."""
    return sum("summary.json" in files for _, _, files in os.walk(folder))


def environment() -> dict[str, str]:
    """In which a process finds this module."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def wait_until(true: Callable[[], bool]) -> None:
    """Wait for something that is bound to come."""
    deadline = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


def wait_until_free(folder: Path) -> None:
    """Wait until no process of a killed run, or of killed cells below a folder, holds it any more.

    They end with their parent, but on a busy machine not within the moment that a resumed run waits for them.
    """
    wait_until(lambda: all(is_free(lock) for lock in folder.rglob(LOCK)))


def is_free(lock: Path) -> bool:
    """Whether no process holds a lock."""
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True
