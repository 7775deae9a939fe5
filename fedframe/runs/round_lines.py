"""Files with a line of JSON per round: each line has a checksum, and the checkpoint has a copy of the newest ones.

A line is added before the checkpoint that makes its round count. So a run that was killed may leave a line that is cut
off, or one of a round that no checkpoint holds: neither is damage. A line that ends as lines do and does not fit its
checksum, or a round that is missing, is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedframe.errors import DamageError, RunError
from fedframe.util.checksums import opened_line, sealed_line
from fedframe.util.files import write_bytes
from fedframe.util.plain_files import read_bytes

MOST_COPIED = 1 << 20  # bytes of a file that a checkpoint has a copy of: some thousand rounds, and no cost in any
Line = dict[str, Any]


@dataclass(frozen=True)
class Lines:
    """The lines of a file that can be read, and the numbers (from 1) of those that cannot."""

    good: list[Line]
    broken: list[int]

    @property
    def rounds(self) -> set[int]:
        """The rounds that have a line."""
        return {line["round"] for line in self.good}


def encode(line: Line) -> bytes:
    """A line as it stands in the file."""
    return sealed_line(json.dumps(line).encode()) + b"\n"


def append(path: Path, line: Line) -> None:
    """Add a line."""
    try:
        with path.open("ab") as file:
            file.write(encode(line))
    except OSError as error:
        raise RunError(f"Could not write {path}: {error.strerror}; free some space.") from error


def write(path: Path, lines: Sequence[Line]) -> None:
    """Rewrite all lines."""
    write_bytes(path, b"".join(map(encode, lines)))


def read(path: Path) -> Lines:
    """The lines of a file; none if there is no file. What follows the last end of a line is still being written."""
    return parse(read_bytes(path)) if path.exists() else Lines([], [])


def parse(content: bytes) -> Lines:
    """The lines in the bytes of a file."""
    good: list[Line] = []
    broken: list[int] = []
    *whole, last = content.split(b"\n")
    for number, text in enumerate([*whole, *([last] if complete(last) else [])], start=1):
        line = decode(text)
        if line is None:
            broken.append(number)
        else:
            good.append(line)
    return Lines(good, broken)


def decode(text: bytes) -> Line | None:
    """One line; None if it is damaged."""
    content = opened_line(text)
    try:
        line = json.loads(content) if content is not None else None
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) and type(line.get("round")) is int else None


def complete(text: bytes) -> bool:
    """Whether what follows the last end of a line is a line all the same: an editor may have cut its end off."""
    return bool(text) and decode(text) is not None


# -- copies ------------------------------------------------------------------------------------------------------------
def copy_of(path: Path) -> Tensor | None:
    """The newest lines of a file as they are, for the checkpoint; None if there is no file."""
    if not path.exists():
        return None
    content = read_bytes(path)
    if len(content) > MOST_COPIED:
        content = content[content.index(b"\n", len(content) - MOST_COPIED) + 1 :]
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


def mended(path: Path, copy: Tensor | None, until: int, every: bool) -> tuple[list[Line], str | None]:
    """The lines of rounds up to `until`, and a sentence on those that the copy had to be asked for, if there are any.

    With `every`, each round must have a line, as of metrics; otherwise those that the copy has, as of drift.
    """
    found = read(path)
    kept = {line["round"]: line for line in found.good if line["round"] <= until}
    copied = {line["round"]: line for line in parse(copy.numpy().tobytes()).good} if copy is not None else {}
    missing = [round for round in copied if round not in kept and round <= until]
    lines = [line for _, line in sorted({**{round: copied[round] for round in missing}, **kept}.items())]
    lost = sorted(set(range(1, until + 1)) - {line["round"] for line in lines}) if every else []
    if (found.broken and (lost or copy is None)) or (lost and copy is not None):
        raise damaged(path, found.broken, lost)
    if not missing:
        return lines, None
    return lines, f"{path.name} was damaged: {rounds_text(missing)} put back from the checkpoint."


def damaged(path: Path, numbers: Sequence[int], lost: Sequence[int] = ()) -> DamageError:
    """The error about lines that nothing can put back."""
    if not numbers:
        return DamageError(f"{path} is damaged: {rounds_text(lost)} not in it.", path)
    some = ", ".join(map(str, numbers[:5]))
    return DamageError(f"{path} is damaged in {'line' if len(numbers) == 1 else 'lines'} {some}.", path)


def rounds_text(rounds: Sequence[int]) -> str:
    """`round 3 is`, `rounds 3 to 5 are`."""
    first, last = min(rounds), max(rounds)
    return f"round {first} is" if first == last else f"rounds {first} to {last} are"
