"""From run folders to a page: looks at the saved models where that is still to be done, and writes the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedframe.errors import DataError, FedframeError, SettingError, nearest
from fedframe.metrics.embedding import METHODS
from fedframe.report.page import default_target, make_page
from fedframe.report.page.runs import Group, Run, Subject, open_runs
from fedframe.runs.folder import EXAMINATION
from fedframe.util.files import read_json, write_text

StepHooks = Callable[[str], None]


def write_page(
    folders: Sequence[Path],
    out: Path | None = None,
    *,
    quick: bool = False,
    embedding: str | None = None,
    say: StepHooks = print,
) -> Path:
    """Write the page of runs; `quick` takes what is known and looks at no model."""
    target = in_a_folder(out) if out is not None else default_target(folders)
    if embedding is not None and embedding not in METHODS:
        raise SettingError(f"embedding = {embedding!r}: {nearest(embedding, METHODS)}")
    subject = open_runs(folders)
    if not quick:
        subject = examined(subject, embedding, say)
    write_text(target, make_page(subject))
    return target


def in_a_folder(target: Path) -> Path:
    """A file to write, whose folder must be there: a slip of the pen makes no folders."""
    if not target.parent.is_dir():
        raise SettingError(f"out = {target}: there is no folder {target.parent}; make it, or use --out {target.name}.")
    return target


def examined(subject: Subject, embedding: str | None = None, say: StepHooks = print) -> Subject:
    """The same with the saved models of one run of each method looked at; what went wrong is kept as a sentence."""
    groups = tuple(with_first(group, examined_run(group.first, embedding, say)) for group in subject.groups)
    return replace(subject, groups=groups)


def with_first(group: Group, first: Run) -> Group:
    """A group whose first run is another reading of the same folder."""
    return replace(group, runs=(first, *group.runs[1:]))


def examined_run(run: Run, embedding: str | None, say: StepHooks) -> Run:
    """A finished run that has been looked at; one that still goes on is left alone."""
    if not run.summary:
        return run
    from fedframe.analysis import examine

    asked = kept_wishes(run.path)
    if embedding is not None:
        asked["embedding"] = embedding
    if not (run.path / EXAMINATION).exists():
        say(f"Looking at the models of {run.path} (once; the result is kept in {EXAMINATION})")
    try:
        examine(run.path, **asked)
    except FedframeError as error:
        say(f"{run.path}: {error}")
        return Run(run.path, trouble=f"The saved models could not be looked at. {error}")
    return Run(run.path)


def kept_wishes(folder: Path) -> dict[str, Any]:
    """What an examination that is there was asked for, by `fedframe measure` perhaps: it is respected."""
    try:
        made_of = read_json(folder / EXAMINATION).get("made_of") or {}
    except DataError:  # none, or a damaged one: made anew
        return {}
    return {key: made_of[key] for key in ("samples", "seed", "embedding") if key in made_of}
