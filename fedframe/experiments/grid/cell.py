"""A cell: a run with a name and a folder of its own; and what has become of it, read from that folder alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedframe.errors import SettingError
from fedframe.runs.folder import CONFIG, RunFolder
from fedframe.runs.round_files import SUMMARY
from fedframe.settings import Settings
from fedframe.util.files import read_json, write_json

if TYPE_CHECKING:
    from fedframe.jobs.build import Net
    from fedframe.jobs.inputs import Input

DIVERGED = "diverged.json"  # in a cell's folder: why its training cannot come to an end
# Settings that say where a run is done or shown and not what is done: a cell may go on with others.
MACHINE = frozenset({"workers", "data_dir", "engine", "log"})

State = Literal["finished", "diverged", "failed", "waiting"]


@dataclass(frozen=True)
class Cell:
    """One run among many, with a name and a folder."""

    name: str  # as people read it: "FedAvg, C10-100-2, seed 0"
    settings: Settings
    folder: Path
    data: object = None  # data and net that exist only in Python
    net: Net | None = None
    inputs: tuple[Input, ...] = ()  # the user's own files and code that it depends on

    def moved(self, folder: Path, inputs: tuple[Input, ...] = ()) -> Cell:
        """The same cell in another folder, with the inputs that are recorded there."""
        return replace(self, folder=folder, inputs=inputs)


@dataclass(frozen=True)
class Outcome:
    """What has become of a cell: finished, diverged (going on would not help), failed this time, or not run yet."""

    cell: Cell
    state: State
    reason: str = ""  # a sentence, if it is neither finished nor waiting

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Everything in the run's summary.json; empty unless it is finished."""
        return RunFolder(self.cell.folder).read(SUMMARY) if self.state == "finished" else {}

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """A dictionary per round."""
        return RunFolder(self.cell.folder).metrics()


def outcome_of(cell: Cell) -> Outcome:
    """The outcome that is recorded in the cell's folder; a folder that holds another run is refused."""
    if not (cell.folder / CONFIG).exists():
        return Outcome(cell, "waiting")
    refuse_other_run(cell)
    if (cell.folder / SUMMARY).exists():
        return Outcome(cell, "finished")
    if (cell.folder / DIVERGED).exists():
        return Outcome(cell, "diverged", str(read_json(cell.folder / DIVERGED).get("reason")))
    return Outcome(cell, "waiting")


def keep_divergence(cell: Cell, reason: str) -> None:
    """Write down that the same settings would fail again, so that they are not tried again."""
    write_json(cell.folder / DIVERGED, {"reason": reason})


def refuse_other_run(cell: Cell) -> None:
    """Refuse a folder that holds a run with other settings."""
    name = other_setting(cell)
    if name is not None:
        found, asked = getattr(RunFolder(cell.folder).settings(), name), getattr(cell.settings, name)
        raise SettingError(
            f"{cell.folder} holds a run with {name} = {found!r}, not {asked!r}; choose another --out, or remove that "
            "folder."
        )


def other_setting(cell: Cell) -> str | None:
    """The first setting in which the run in the cell's folder differs from the cell; None if it is the same run."""
    held = RunFolder(cell.folder).settings()
    for name, asked in cell.settings:
        if name in MACHINE or asked is None or asked == "auto":  # the run's own file says what these came to
            continue
        if name in ("lr", "lr_per_class") and cell.settings.lr_per_class is not None and held.lr_per_class is None:
            continue  # the run has made one rate of them when it knew the number of classes
        found = getattr(held, name)
        if name == "rounds" and found == 0:  # where nothing learns in rounds, they are left out
            continue
        if found != asked:
            return name
    return None
