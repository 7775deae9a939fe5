"""Runs that wait at a known point until they are killed: no test has to be quick enough on a busy machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedframe.runs.session import Session

ROOT = Path(__file__).parents[1]
DEADLINE = 300.0  # seconds: far more than anything takes, so that only a hang reaches it
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
