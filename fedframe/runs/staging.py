"""Changing many files of a finished run at once: a process that is killed leaves the folder as before or as after.

New files are written into a folder of their own inside the run's. A manifest that is renamed into it last makes them
count: from then on whoever opens the run first moves them to their places, however often that is cut off.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from fedframe.util.files import read_json, write_json

STAGE = ".changing"
MANIFEST = "manifest.json"


def new_stage(run: Path) -> Path:
    """An empty folder for new files; what a change that was cut off before it counted has left is thrown away."""
    stage = run / STAGE
    if stage.exists():
        shutil.rmtree(stage)
    stage.mkdir()
    return stage


def is_pending(run: Path) -> bool:
    """Whether a change counts already and its files are not all in their places."""
    return (run / STAGE / MANIFEST).exists()


def commit(run: Path, delete: Sequence[str]) -> None:
    """Make the staged files and folders count, each in place of what had its name, and delete others."""
    replaced = sorted(path.name for path in (run / STAGE).iterdir())
    write_json(run / STAGE / MANIFEST, {"replace": replaced, "delete": list(delete)})
    apply(run)


def apply(run: Path) -> None:
    """Move what is staged to its place; can be cut off anywhere and repeated."""
    stage = run / STAGE
    manifest = read_json(stage / MANIFEST)
    for name in manifest["replace"]:
        if (stage / name).exists():  # otherwise it has been moved before
            remove(run / name)
            (stage / name).rename(run / name)
    for name in manifest["delete"]:
        remove(run / name)
    (stage / MANIFEST).unlink()
    shutil.rmtree(stage)


def remove(path: Path) -> None:
    """Delete a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
