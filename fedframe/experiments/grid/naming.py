"""Folders that are named after all that decides on a run's result: equal runs share one, different ones never meet."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedframe.experiments.grid.cell import MACHINE, Cell, other_setting
from fedframe.jobs.inputs import Input, InputFinder, contents
from fedframe.methods.recipes import make_method
from fedframe.runs.folder import CONFIG, INPUTS, RunFolder
from fedframe.settings import Settings


def cell_at(base: Path, stem: str, cell: Cell, finder: InputFinder, as_asked: Mapping[str, Any], *more: object) -> Cell:
    """The cell with its folder below `base` and the inputs that it is named after.

    `more` is plain data that decides on the result beside the settings. A folder that was made before inputs were
    recorded counts as it is: it is named after the settings alone, with paths `as_asked` for, not made absolute.
    """
    settings = cell.settings
    inputs = finder.find(settings, cell.net)
    if not inputs:
        return cell.moved(find_folder(base, stem, digest(settings, *more), cell))
    placed = replace(cell, inputs=inputs)
    folder = find_folder(base, stem, digest(settings, *more, contents(inputs)), placed)
    earlier = base / f"{stem}-{digest(settings.model_copy(update=dict(as_asked)), *more)}" / folder.name
    if not (folder / CONFIG).exists() and (earlier / CONFIG).exists() and not (earlier / INPUTS).exists():
        return cell.moved(earlier)
    return cell.moved(folder, inputs)


def find_folder(base: Path, stem: str, code: str, cell: Cell) -> Path:
    """The cell's folder: one that holds this very run, whatever its name begins with, or else a free one.

    A label may have changed since the folder was made. And a folder may hold another run than its name says: a
    default of Fedframe has changed since, or the run went on with changed code; then it is passed by.
    """
    seed = f"seed-{cell.settings.seed}"
    folder = base / f"{stem}-{code}" / seed
    if holds(folder, cell):
        return folder
    for other in sorted(base.glob(f"*-{code}*/{seed}")):
        if re.search(rf"-{code}(-\d+)?$", other.parent.name) and holds(other, cell):
            return other
    number = 1
    while (folder / CONFIG).exists():
        number += 1
        folder = base / f"{stem}-{code}-{number}" / seed
    return folder


def holds(folder: Path, cell: Cell) -> bool:
    """Whether a folder holds a cell's run, made with the same inputs from its first round on."""
    if not (folder / CONFIG).exists() or other_setting(cell.moved(folder)) is not None:
        return False
    if not (folder / INPUTS).exists():
        return not cell.inputs
    record = RunFolder(folder)
    return contents(record.inputs()) == contents(cell.inputs) and not record.changed_code()


def recorded_inputs(out: Path) -> Iterator[Input]:
    """The inputs of all cells below a folder: digests of large files that have not changed are taken from there."""
    for path in out.glob(f"*/*/seed-*/{INPUTS}"):
        yield from RunFolder(path.parent).inputs()


def digest(settings: Settings, *more: object) -> str:
    """Eight characters that change with any setting but those of the machine and the seed.

    The parts count as well: a method whose defaults have changed since gets another folder.
    """
    decides = settings.model_dump(mode="json", exclude=set(MACHINE) | {"seed"}, exclude_defaults=True)
    parts = [repr(part) for part in make_method(settings.method, settings.set).parts]
    text = json.dumps([decides, parts, *more], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def slug(text: str, longest: int = 60) -> str:
    """A text as part of a folder's name."""
    return re.sub(r"[^\w.+=-]+", "-", text).strip("-.")[:longest] or "run"
