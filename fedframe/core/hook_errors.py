"""Errors in the code of parts and nets, as one sentence with the file, the line and the hook."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from fedframe.core.part_check import place
from fedframe.errors import FedframeError, RunError

if TYPE_CHECKING:
    from fedframe.core.part import Part

PACKAGE = Path(__file__).parents[1]
METHODS = PACKAGE / "methods"
LIBRARIES = tuple(str(Path(sysconfig.get_path(name))) for name in ("stdlib", "purelib", "platlib"))


def location(error: BaseException) -> str | None:
    """Where in a part's or a user's file an error was raised: `mine.py, line 12, in Mine.penalty`; None if nowhere.

    The deepest such line counts: a hook that hands torch the wrong shape is at fault, not torch.
    """
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = Path(frame.f_code.co_filename)
        inside = file.is_relative_to(PACKAGE)
        if file.is_relative_to(METHODS) or not (inside or str(file).startswith((*LIBRARIES, "<frozen"))):
            found = f"{file}, line {line}, in {frame.f_code.co_qualname}"
    return found


def describe(error: BaseException) -> str:
    """The kind and text of an error, and where it was raised if that is in a part's or a user's file."""
    where = location(error)
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" + (f" ({where})" if where else "")


@contextmanager
def named_errors(where: str) -> Iterator[None]:
    """Turn an error that a part's or a user's file has raised into one sentence; others pass as they are."""
    try:
        yield
    except FedframeError:
        raise
    except Exception as error:
        if location(error) is None:
            raise
        raise RunError(f"{where}: {describe(error)}") from error


def wrong_return(part: Part, hook: str, value: object, wanted: str) -> RunError:
    """The sentence about a hook that returned something else than it must."""
    found = f"a {type(value).__name__}" if value is not None else "None: is a return missing?"
    return RunError(f"{place(type(part))}.{hook} must return {wanted}, and returned {found}")


def returned_tensor(value: Tensor, part: Part, hook: str) -> Tensor:
    """What a hook returned, if it is a tensor; a forgotten `return` is named with its hook."""
    if not isinstance(value, Tensor):
        raise wrong_return(part, hook, value, "a tensor")
    return value
