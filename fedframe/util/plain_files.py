"""Reading plain files: whatever else stands in a file's place is one sentence, at once. Needs no torch."""

from __future__ import annotations

import stat
from pathlib import Path

from fedframe.errors import DamageError


def read_bytes(path: Path) -> bytes:
    """The bytes of a plain file; anything else in its place is refused at once, where a pipe would never end."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise DamageError(f"{path} is no file but {kind_of(path)}.", path)
        return path.read_bytes()
    except FileNotFoundError as error:
        raise DamageError(f"There is no {path}.", path) from error
    except (OSError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or "it is too large"
        raise DamageError(f"Could not read {path}: {reason}.", path) from error


def refuse_pipe(path: Path) -> None:
    """Refuse what reading would never end of; what is not there, or a folder, is left to whoever reads it."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise DamageError(f"{path} is no file but {kind_of(path)}.", path)


def kind_of(path: Path) -> str:
    """What stands in a file's place."""
    return "a folder" if path.is_dir() else "a pipe or a device"


def read_text(path: Path) -> str:
    """The text of a plain file in UTF-8."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise DamageError(f"{path} is damaged: byte {error.start} is not UTF-8 text.", path) from error


def explained(error: Exception) -> str:
    """Why a text cannot be read, in a few words."""
    return "it is nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())[:200]
