"""Every kind of file of a run folder, damaged in every way: one sentence that names it, or put back and said.

What comes of it is never another result. The cases are those of `benchmarks/corruption.py`, here in one process.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks import corruption
from benchmarks.corruption import attempt, copytree, make_subjects

pytestmark = pytest.mark.slow
WAYS = {
    **{f"flip at {place:.0%}": corruption.flip(place) for place in (0.0, 0.5, 1.0)},
    **{name: corruption.WAYS[name] for name in ("truncate", "empty", "folder", "fifo", "delete")},
}
USES = {
    "finished": ("resume", "predict", "predict --client", "report"),
    "stopped": ("resume",),
    "comparison": ("report",),
}
# What nobody reads again (times, pages), and of what a part there is one like it: further clients and methods.
UNREAD = (".lock", "log.txt", "report.html")
AGAIN = (
    "alone/",
    "runs/scaffold",
    "clients/000/000001",
    "clients/000/000002",
    "personal/000/000000",
    "personal/000/000002",
)
# A folder without it is one of which it was never asked for: nothing says that it was there.
NEVER_MADE = ("gain.json", "examination.json", "inputs.json")
SECONDS = 60  # after which a command is held to hang


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("subjects")
    made = make_subjects(base)
    np.save(base / "inputs.npy", np.load(base / "data.npz")["x_test"][:4])
    return made


def kinds(folder: Path) -> Iterator[str]:
    """One file of each kind that is read back."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        unread = path.name in UNREAD or path.suffix in (".html", ".md", ".tex", ".csv")
        if path.is_file() and not unread and not name.startswith(AGAIN):
            yield name


def used(
    subject: str, use: str, sound: Path, work: Path, sound_result: str | None, file: str = "", way: str = ""
) -> tuple[str, str]:
    """What one command gives in a copy in which a file may be damaged."""
    copytree(sound, work)
    if file:
        WAYS[way](work / file)
    try:
        return attempt(subject, use, work, sound_result)
    finally:
        shutil.rmtree(work)


@pytest.mark.parametrize("subject", USES)
def test_whatever_file_is_damaged_in_whatever_way_it_is_said_or_does_not_matter(
    subjects: dict[str, Path], subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = subjects[subject]
    work = sound.parent / "work" / "run"
    work.parent.mkdir(exist_ok=True)
    bad, count = [], 0

    def hang(*_: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, hang)
    try:
        for use in USES[subject]:
            kind, result = used(subject, use, sound, work, None)
            assert kind == "sound", result
            for file in kinds(sound):
                for way in WAYS:
                    signal.alarm(SECONDS)
                    kind, text = used(subject, use, sound, work, result, file, way)
                    signal.alarm(0)
                    count += 1
                    names = Path(file).name in text or str(Path(file).parent) in text
                    fine = kind == "same" or (kind in ("sentence", "said") and names)
                    if not fine and not (way == "delete" and Path(file).name in NEVER_MADE):
                        bad.append((use, file, way, kind, text[:200]))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert not bad, json.dumps(bad, indent=1)
    assert count >= 8 * len(USES[subject]) * 8
    assert os.path.exists(sound)
