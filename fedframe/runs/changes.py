"""Which of the user's own files and code have changed since a run was begun; users of the run see their names.

Going on with a run needs all of them as they were, and so does an examination of its models, which reads the data too.
Predicting and personalising take the saved weights, classes and normalisation and build the net and the method again:
edited code would compute something else with the same weights, and nothing in the result would show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedframe.errors import DataError
from fedframe.jobs.inputs import Input, InputFinder, changed_inputs
from fedframe.methods.recipes import PYTHON
from fedframe.runs.folder import RunFolder
from fedframe.settings import FROM_PYTHON

# Which code is compared. Objects of the process that has trained a run are those that it was trained with: "files".
CodeCheck = Literal["all", "files", "none"]
AS_IT_IS = "--changed-code (in Python: changed_code=True)"


@dataclass(frozen=True)
class InputChange:
    """What a run depends on as it is now, and the names of those inputs that are not what they were."""

    now: tuple[Input, ...]
    names: str

    def record(self, folder: RunFolder) -> None:
        """Keep the inputs as they are now as those that the run goes on with."""
        found = folder.checkpoint()
        done = 0 if found is None else found[0]
        folder.write_inputs(self.now, until_round=done)
        folder.log(f"Going on after round {done} although {self.names} changed.")


def find_changes(folder: RunFolder, net: object, changed_code: bool) -> InputChange | None:
    """What has changed for a run that is to go on; refused, unless `changed_code` allows it."""
    recorded = folder.inputs()
    now = InputFinder(lambda: recorded).find(folder.settings(), net) if recorded else ()
    names = ", ".join(changed_inputs(recorded, now))
    if names and not changed_code:
        raise DataError(
            f"{names} changed since {folder.path} was begun; put it back as it was, start a new run, or go on with it "
            f"as it is now: {AS_IT_IS}."
        )
    return InputChange(now, names) if names else None


def changed_since(folder: RunFolder, net: object, *, data: bool, objects: bool = True) -> list[Input]:
    """What differs now of all that a finished run's models are loaded with; with `data`, also of its data files.

    What is gone is left out, because loading it says so; the same content in another place is no change.
    """
    recorded = folder.inputs()
    if not recorded:  # nothing of the user's own, or a folder from elsewhere
        return []
    settings = folder.settings()
    if not data:
        settings = settings.model_copy(update={"data": FROM_PYTHON})
    found = InputFinder(lambda: recorded).find(settings, net if settings.model == FROM_PYTHON else None)
    before = {each.path: each.blake2b for each in recorded}
    known = set(before.values())
    return [
        each
        for each in found
        if (objects or not each.path.startswith(PYTHON))
        and (before[each.path] != each.blake2b if each.path in before else each.blake2b not in known)
    ]


def refuse_changed_code(folder: str | Path, net: object, check: CodeCheck = "all") -> None:
    """Refuse to load a model with code that is not what it was trained with."""
    if check != "none":
        refuse(changed_since(RunFolder(Path(folder)), net, data=False, objects=check == "all"), folder)


def refuse(changed: Sequence[Input], folder: str | Path) -> None:
    """Refuse what has changed, if anything has, in one sentence."""
    if changed:
        names = ", ".join(each.path for each in changed)
        raise DataError(
            f"{names} changed since {folder} was trained, so that its models would give other results than they did; "
            f"put it back as it was, or use it as it is now: {AS_IT_IS}."
        )
