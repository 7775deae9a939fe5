"""Records that survive a power cut: lines that are on the disk before the caller goes on, each with its checksum."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fedframe.errors import DataError, RunError
from fedframe.util.checksums import DIGITS, LINE, LINE_END, opened_line, sealed_line
from fedframe.util.plain_files import refuse_pipe


def append_record(path: Path, record: dict[str, Any]) -> None:
    """Add a line of JSON, and return when the disk has it; a line that was cut off before is ended first."""
    line = sealed_line(json.dumps(record, sort_keys=True).encode()) + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = not path.exists()
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                line = b"\n" + line
            if file.write(line) != len(line):
                raise OSError(None, "the line was cut off")
            os.fsync(file.fileno())
        if fresh:
            sync_folder(path.parent)
    except OSError as error:
        raise RunError(f"Could not write {path}: {error.strerror or error}; free some space.") from error


def read_records(path: Path) -> list[dict[str, Any]]:
    """All lines; one that was cut off while it was written is left out, for what it was to precede never happened.

    Where it was cut off, later lines may follow. Any other line that cannot be read is an error: the record would say
    that something never happened which did.
    """
    if not path.exists():
        return []
    refuse_pipe(path)
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DataError(f"Could not read {path}: {error.strerror or error}.") from error
    found: list[dict[str, Any]] = []
    for number, line in enumerate(lines):
        if not line:
            continue
        try:
            whole = opened_line(line)
            if whole is None:
                raise ValueError("another checksum")
            record = json.loads(whole)
        except ValueError as error:
            if is_cut_off(line):
                continue
            raise DataError(f"{path} is damaged in line {number + 1}; put an undamaged copy in its place.") from error
        if not isinstance(record, dict):
            raise DataError(f"{path} is damaged in line {number + 1}; put an undamaged copy in its place.")
        found.append(record)
    return found


def is_cut_off(line: bytes) -> bool:
    """Whether a line is a beginning without an end; what a disk has spoilt is as long as it was."""
    _, marker, tail = line.rpartition(LINE)
    whole = bool(marker) and len(tail) >= DIGITS + len(LINE_END)
    return line.startswith(b"{") and not line.endswith(b"}") and not whole


def write_durably(path: Path, content: bytes) -> None:
    """Write a whole file or none of it, and return when the disk has it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(f"Could not write {path}: {error.strerror or error}; free some space.") from error


def sync_folder(path: Path) -> None:
    """Have the disk take down the names in a folder, where the system lets folders be opened."""
    try:
        number = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(number)
    finally:
        os.close(number)
