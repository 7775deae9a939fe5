"""Going back: a run goes on from an earlier round, or from the start, because a file of it is damaged.

Going on from a round that is kept gives the same result as before. Of a finished run that is the last round too: the
stages after it are done again, and write the models and scores again.
"""

from __future__ import annotations

import os
import shutil

from fedframe.errors import SettingError
from fedframe.runs.folder import MODEL, RunFolder
from fedframe.runs.round_files import CHECKPOINT, PREVIOUS, SUMMARY


def rewind(folder: RunFolder, round: int) -> None:
    """Have the run go on after this round; every step leaves a folder that can be resumed, or gone back with again."""
    kept = folder.rounds_kept()
    if round and round not in kept:
        choice = ", ".join(map(str, sorted({*kept, 0})))
        raise SettingError(f"--from-round {round}: {folder.path} can go back to {choice}; use one of these.")
    with folder.alone():
        for name in (SUMMARY, MODEL):  # first: from here on it is not finished
            remove(folder, name)
        if round == 0:
            shutil.rmtree(folder.path / "clients", ignore_errors=True)
            for name in (PREVIOUS, CHECKPOINT):
                remove(folder, name)
        elif kept[round] == PREVIOUS:
            draft = folder.path / f".{CHECKPOINT}.{os.getpid()}.part"
            shutil.copyfile(folder.path / PREVIOUS, draft)
            remove(folder, CHECKPOINT, only_folders=True)
            draft.replace(folder.path / CHECKPOINT)
        folder.log(f"Going back to round {round}.")


def remove(folder: RunFolder, name: str, only_folders: bool = False) -> None:
    """Take a file away, or whatever stands in its place."""
    path = folder.path / name
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif not only_folders:
        path.unlink(missing_ok=True)
