"""The errors that users see: one sentence that names the setting and a value that would work."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedframeError(Exception):
    """Anything that ends a command with one clear sentence instead of a traceback."""


class SettingError(FedframeError):
    """A setting has a value that cannot work."""


class DataError(FedframeError):
    """A data file is missing, damaged or does not fit the run."""


class ProtocolError(DataError):
    """A letter between organisations is flawed; the text is about the letter alone, so its sender may be told."""


class RunError(FedframeError):
    """A run could not go on; what was finished is kept."""


class DivergedError(RunError):
    """Training itself went wrong; going on with the same settings would fail again."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known name was probably meant, or list them: the second half of an error sentence."""
    names = sorted(set(known))
    lower = {each.lower(): each for each in reversed(names)}
    close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.5)
    if close:
        return f"did you mean {lower[close[0]]!r}?"
    return f"choose one of: {', '.join(names)}."
