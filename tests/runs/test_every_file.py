"""Every kind of file of a run folder, damaged in every way: one sentence that names it, or put back and said.

What comes of it is never another result. The cases are those of `benchmarks/corruption.py`, here in one process.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks import corruption
from benchmarks.corruption import attempt, copytree, make_runs

pytestmark = pytest.mark.slow
WAYS = {
    **{f"flip at {place:.0%}": corruption.flip(place) for place in (0.0, 0.5, 1.0)},
    **{name: corruption.WAYS[name] for name in ("truncate", "empty", "folder", "fifo", "delete")},
}
USES = {"finished": ("resume", "predict --client", "report"), "stopped": ("resume",)}
# What nobody reads again, and of what a part there is one like it: the run that gain trains, and other clients.
UNREAD = (".lock", "log.txt", "report.html")
AGAIN = ("alone/", "clients/000/000001", "clients/000/000002", "personal/000/000000", "personal/000/000002")
# A folder without it is one of which it was never asked for: nothing says that it was there.
NEVER_MADE = ("gain.json", "examination.json", "inputs.json")
# A run without them is one that died before it had them, and its page says what is not there yet.
SAID_IN_THE_PAGE = {
    ("report", "client_scores.json"): "no scores by client (client_scores.json)",
    ("report", "summary.json"): "Appears when the run is finished",
}
SECONDS = 300  # after which a command is held to hang, however busy the machine is


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("subjects")
    made = make_runs(base)
    np.save(base / "inputs.npy", np.load(base / "data.npz")["x_test"][:4])
    return made


def kinds(folder: Path) -> Iterator[str]:
    """One file of each kind that is read back."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and path.name not in UNREAD and not name.startswith(AGAIN):
            yield name


def outcome(
    subject: str, use: str, sound: Path, expected: str | None, file: str = "", way: str = ""
) -> tuple[str, str]:
    """What one command makes of a copy in which a file may be damaged."""
    work = sound.parent / "work" / "run"
    copytree(sound, work)
    if file:
        WAYS[way](work / file)
    try:
        return attempt(subject, use, work, expected)
    finally:
        shutil.rmtree(work)


def hang(*_: object) -> None:
    raise TimeoutError("it hangs")


@pytest.mark.parametrize(("subject", "use"), [(subject, use) for subject, uses in USES.items() for use in uses])
def test_whatever_file_is_damaged_in_whatever_way_it_is_said_or_does_not_matter(
    subjects: dict[str, Path], subject: str, use: str
) -> None:
    sound = subjects[subject]
    (sound.parent / "work").mkdir(exist_ok=True)
    kind, expected = outcome(subject, use, sound, None)
    if subject == "finished":
        assert kind == "sound", expected
    files, bad = [*kinds(sound)], []
    assert len(files) >= 8
    before = signal.signal(signal.SIGALRM, hang)
    try:
        for file in files:
            for way in WAYS:
                signal.alarm(SECONDS)
                kind, text = outcome(subject, use, sound, expected, file, way)
                signal.alarm(0)
                state = file.startswith("clients/") and "private state of client 0" in text
                named = Path(file).name in text or str(Path(file).parent) in text or state
                known = way == "delete" and (Path(file).name in NEVER_MADE or (use, file) in SAID_IN_THE_PAGE)
                if not (kind == "same" or (kind in ("sentence", "said") and named) or known):
                    bad.append((file, way, kind, text[:200]))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert not bad, json.dumps(bad, indent=1)


@pytest.mark.parametrize(("file", "said"), [(file, said) for (_, file), said in SAID_IN_THE_PAGE.items()])
def test_a_page_says_what_is_not_there(subjects: dict[str, Path], tmp_path: Path, file: str, said: str) -> None:
    copytree(subjects["finished"], tmp_path / "run")
    (tmp_path / "run" / file).unlink()
    assert said in corruption.reported(tmp_path / "run", [])
