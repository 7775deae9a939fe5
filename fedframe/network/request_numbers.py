"""Letters of a run are numbered, so that a node knows one that comes late: after a newer one, it is not to be obeyed.

A letter says which states of a client were merged, and a node forgets the others; an old letter would have it forget
states that have been merged since. Numbers grow over sessions of the organiser too, however a session ends: each counts
on from the second in which it began, and from more than the last one even if the clock was set back. So they grow also
if the organiser's folder was restored from an older copy.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

from fedframe.errors import DataError, ProtocolError
from fedframe.util.files import read_json, write_json

FOLDER = "letters"  # in a run's folder, at the organiser and at the node; in a trial these are the same
SESSION = 1 << 28  # more letters than a session ever sends; times the seconds of some centuries it is below 2**63


class Numbers:
    """The organiser's side: numbers for letters, each larger than all before."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FOLDER / "sent.json"
        self.last: int | None = None

    def next(self) -> int:
        """A new number."""
        if self.last is None:
            before = int(read_json(self.path)["began"]) if self.path.exists() else 0
            began = max(before + 1, int(time.time()))
            write_json(self.path, {"began": began})
            self.last = began * SESSION
        self.last += 1
        return self.last


def refuse_late(folder: Path, clients: Collection[int], number: int) -> None:
    """The node's side: refuse a letter with a smaller number than one before; the same letter twice does no harm."""
    path = folder / FOLDER / f"taken-{min(clients)}.json"  # nodes of a trial share a folder, but no client
    try:
        newest = int(read_json(path)["number"]) if path.exists() else 0
    except (DataError, KeyError, TypeError, ValueError):
        newest = 0  # a torn file must not keep a node out for good
    if number < newest:
        raise ProtocolError("This letter came after a newer one and is not obeyed.")
    if number > newest:
        write_json(path, {"number": number})
