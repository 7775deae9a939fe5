"""What to do after a run has stopped: advice that works for the way the run was started and for what stopped it."""

from __future__ import annotations

import shlex
from pathlib import Path

from fedframe.methods.recipes import PYTHON
from fedframe.runs.folder import RunFolder
from fedframe.settings import Settings, from_python
from fedframe.util.locate import own_error


def how_to_go_on(
    error: BaseException, settings: Settings, folder: RunFolder, done: int, command: str | None = None
) -> str:
    """What is kept of a run that has stopped, and how to go on; `command` goes on where `resume` does not."""
    kept = f"{done} of {settings.rounds} rounds are finished and kept" if done else "No round is finished yet"
    if command is not None:
        return f"{kept}; go on with: {command}"
    again, changed = (resume_text(settings, folder.path, changed_code) for changed_code in (False, True))
    cause = error.__cause__ or error
    if isinstance(error, KeyboardInterrupt) or isinstance(cause, OSError):
        return f"{kept}; go on with: {again}"
    code = own_code(folder)
    if is_own_fault(error, folder):  # the same code would fail again
        return f"{kept}; fix that, then go on with: {changed}"
    if code:
        return f"{kept}; go on with: {again} (after a change of your own code: {changed})"
    return f"{kept}; go on with: {again}"


def own_code(folder: RunFolder) -> list[str]:
    """The user's own code that a run depends on: files, and objects of Python."""
    return [each.path for each in folder.inputs() if each.path.startswith(PYTHON) or each.path.endswith(".py")]


def is_own_fault(error: BaseException, folder: RunFolder) -> bool:
    """Whether an error was raised in the user's own code, or names it."""
    return own_error(error.__cause__ or error) is not None or any(path in str(error) for path in own_code(folder))


def resume_text(settings: Settings, path: Path, changed_code: bool) -> str:
    """The command that goes on with a run, or the call in Python if only Python has what the run needs."""
    objects = [f"{name}=..." for name in from_python(settings.model_dump())]
    if objects:
        flag = ["changed_code=True"] if changed_code else []
        return f"fedframe.resume({', '.join([repr(str(path)), *objects, *flag])})"
    return f"fedframe resume {shlex.quote(str(path))}{' --changed-code' if changed_code else ''}"
