"""Folders that are named after all that decides on a run's result: equal runs share one, different ones never meet."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedframe.experiments.grid.cell import MACHINE, Cell
from fedframe.jobs.inputs import Input, InputFinder, contents
from fedframe.methods.recipes import make_method
from fedframe.runs.folder import CONFIG, INPUTS, RunFolder
from fedframe.settings import Settings


def cell_at(base: Path, stem: str, cell: Cell, finder: InputFinder, as_asked: Mapping[str, Any], *more: object) -> Cell:
    """The cell with its folder below `base` and the inputs that it is named after.

    `more` is plain data that decides on the result beside the settings. A folder that was made before inputs were
    recorded counts as it is: it is named after the settings alone, with paths `as_asked` for, not made absolute.
    """
    settings, seed = cell.settings, f"seed-{cell.settings.seed}"
    inputs = finder.find(settings, cell.net)
    if not inputs:
        return cell.moved(base / f"{stem}-{digest(settings, *more)}" / seed)
    folder = base / f"{stem}-{digest(settings, *more, contents(inputs))}" / seed
    earlier = base / f"{stem}-{digest(settings.model_copy(update=dict(as_asked)), *more)}" / seed
    if not (folder / CONFIG).exists() and (earlier / CONFIG).exists() and not (earlier / INPUTS).exists():
        return cell.moved(earlier)
    return cell.moved(folder, inputs)


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
