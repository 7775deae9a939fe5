"""The errors that users see: one sentence that names the setting and a value that would work."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class FedframeError(Exception):
    """Anything that ends a command with one clear sentence instead of a traceback."""


class SettingError(FedframeError):
    """A setting has a value that cannot work."""


class DataError(FedframeError):
    """A data file is missing, damaged or does not fit the run."""


class DamageError(DataError):
    """A file that Fedframe has written is not as it was: damaged, missing, or something else in its place."""

    def __init__(self, text: str, path: Path | None = None) -> None:
        super().__init__(text)
        self.path = path


class ProtocolError(DataError):
    """A message between organisations is invalid; the text concerns that message alone, so its sender may see it."""


class RunError(FedframeError):
    """A run could not continue; finished rounds are kept."""


class DivergedError(RunError):
    """Training diverged; continuing with the same settings would fail again."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The second half of an error sentence: the known name that was probably meant, or a list of all."""
    names = sorted(set(known))
    lower = {each.lower(): each for each in reversed(names)}
    close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    if close:
        return f"did you mean {lower[close[0]]!r}?"
    return f"choose one of: {', '.join(names)}."
