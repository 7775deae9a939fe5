"""What a stopped run advises works: it is tried."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import fedframe
from fedframe.core import Part
from fedframe.errors import RunError
from fedframe.jobs.gather import gather
from fedframe.jobs.inputs import Input
from fedframe.runs.advice import how_to_go_on
from fedframe.runs.folder import RunFolder
from tests.helpers import blobs
from tests.own_code import PART, SMALL, write_own

FLAWED = PART.replace("return strength()", "strength()")  # a forgotten return, which raises nothing by itself


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, which is the current one."""
    monkeypatch.chdir(write_own(tmp_path))
    return tmp_path


def advice(run: Callable[[], Any]) -> str:
    """The last note of a run's error."""
    with pytest.raises(RunError) as caught:
        run()
    return str(caught.value.__notes__[-1])


@pytest.mark.slow
def test_forgotten_return_is_mended_and_the_run_goes_on(own: Path) -> None:
    (own / "mine.py").write_text(FLAWED)
    said = advice(lambda: fedframe.run("mine.py:Decay", data="npz:mine.npz", out="run", **SMALL))
    assert said == "No round is finished yet; fix that, then go on with: fedframe resume run --changed-code"
    assert said in (own / "run" / "log.txt").read_text()
    (own / "mine.py").write_text(PART)
    assert len(fedframe.resume("run", changed_code=True, progress=False).history) == 2


def make_part(divisor: int) -> type[Part]:
    """A part of the same name and text, which fails in its second round if it divides by zero."""

    @dataclass(frozen=True)
    class Mine(Part):
        """Divides."""

        name: ClassVar[str] = "mine"

        def after_merge(self, server: Any, clients: Any) -> None:
            server.figures["mine/one"] = 1 / (divisor or 1 - server.round)

    return Mine


@pytest.mark.slow
def test_objects_are_given_again_in_python() -> None:
    data = blobs()
    said = advice(lambda: fedframe.run(make_part(0), data=data, model="mlp:4", out="run", **SMALL))
    assert said == (
        "1 of 2 rounds are finished and kept; fix that, then go on with: "
        "fedframe.resume('run', method=..., data=..., changed_code=True)"
    )
    mended = make_part(1)
    result = fedframe.resume("run", method=mended, data=data, changed_code=True, progress=False)
    assert [line["round"] for line in result.history] == [1, 2]


@pytest.mark.parametrize(
    ("error", "own_code", "ending"),
    [
        (KeyboardInterrupt(), True, "go on with: fedframe resume 'a run'"),
        (RunError("No node answers."), False, "go on with: fedframe resume 'a run'"),
        (
            RunError("No node answers."),
            True,
            "(after a change of your own code: fedframe resume 'a run' --changed-code)",
        ),
    ],
)
def test_advice_follows_from_what_stopped_the_run(error: BaseException, own_code: bool, ending: str) -> None:
    folder = RunFolder(Path("a run"))
    folder.path.mkdir()
    folder.write_inputs([Input("/home/mine.py", 1, 1, "0")] if own_code else [])
    text = how_to_go_on(error, gather({"rounds": 5}, None), folder, 3)
    assert text.startswith("3 of 5 rounds are finished and kept; ")
    assert text.endswith(ending)
    full = RunError("Could not write.")
    full.__cause__ = OSError("disk full")
    assert how_to_go_on(full, gather({}, None), folder, 0) == (
        "No round is finished yet; go on with: fedframe resume 'a run'"
    )
    assert how_to_go_on(error, gather({}, None), folder, 0, "start it").endswith("go on with: start it")
