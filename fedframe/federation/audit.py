"""The audit log of a node or an organiser: one JSON object per line, each with the SHA-256 of the line before it.

A line is on the disk before what it says leaves the machine. `audit.head` beside it holds the number and the hash of
the last line, so that a log whose end was cut off is found too. Whoever can write to the folder can make both files
again: against that only a head helps that was noted elsewhere (`fedframe federation audit FOLDER --head ...`).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock

from fedframe.errors import DataError, RunError, SettingError
from fedframe.util.durable import sync_folder, write_durably

LOG, HEAD, LOCK = "audit.jsonl", "audit.head", ".audit.lock"
FIRST = "0" * 64  # what the first line has for the hash of the one before
BROKEN = "broken"  # an event: when the log was opened, its end was not as its head says
FIELDS = ("number", "time", "event", "before")  # what every line has
MAX_NAMED = 20  # faults that a sentence lists
Record = dict[str, Any]


def canonical(record: Mapping[str, Any]) -> bytes:
    """The one way in which a record is written: keys in order, no spaces, ASCII."""
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest_of(content: bytes) -> str:
    """The SHA-256 of a message or a line, as the log has it."""
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class Head:
    """The number and the hash of a line."""

    number: int = 0
    hash: str = FIRST

    def __str__(self) -> str:
        return f"{self.number}:{self.hash}"

    @classmethod
    def parse(cls, text: str) -> Head | None:
        """Read NUMBER:HASH; None if the text has another form."""
        number, _, value = text.strip().partition(":")
        fine = number.isdecimal() and len(value) == 64 and set(value) <= set("0123456789abcdef")
        return cls(int(number), value) if fine else None


class AuditLog:
    """Adds lines to a folder's log; several processes may, in turn."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / LOG
        self._known: tuple[int, Head] | None = None  # the file's size after our last line, and that line

    def add(self, event: str, **details: Any) -> None:
        """Add a line, and return when the disk has it."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FileLock(self.folder / LOCK):
            try:
                head = self._open_end()
                self._write(head, event, details)
            except OSError as error:
                raise RunError(f"Could not write {self.path}: {error.strerror or error}; free some space.") from error

    def _write(self, head: Head, event: str, details: Mapping[str, Any]) -> None:
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = canonical({**details, "number": head.number + 1, "time": stamp, "event": event, "before": head.hash})
        fresh = not self.path.exists()
        with os.fdopen(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb", buffering=0) as file:
            if file.write(line + b"\n") != len(line) + 1:
                raise OSError(None, "the line was cut off")
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
        if fresh:
            sync_folder(self.folder)
        new = Head(head.number + 1, digest_of(line))
        write_durably(self.folder / HEAD, f"{new}\n".encode())
        self._known = size, new

    def _open_end(self) -> Head:
        """The last line; if anything else has changed the file since, its end is examined again."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if self._known is not None and self._known[0] == size:
            return self._known[1]
        head = read_head(self.folder)
        fragment = self._end_last_line(head)
        lines = read_lines(self.path)
        last = Head(len(lines), digest_of(lines[-1])) if lines else Head()
        problem = end_problem(lines, head)
        if problem is not None:  # said once, for ever: the next head will fit the log again
            self._write(last, BROKEN, {"problem": problem, "head": str(head) if head is not None else None})
        elif fragment:
            self._write(last, "cut off", {"bytes": fragment})
        return self._known[1] if self._known is not None and (problem or fragment) else last

    def _end_last_line(self, head: Head | None) -> int:
        """Take away a line that was cut off while it was written, for what it was to precede never happened.

        What the head knows of was complete once, and stays as it is. Returns the bytes that were taken away.
        """
        content = self.path.read_bytes() if self.path.exists() else b""
        whole = content.rfind(b"\n") + 1
        if whole == len(content):
            return 0
        complete = content.count(b"\n")
        with self.path.open("r+b") as file:
            if head is not None and head.number > complete:
                file.seek(0, os.SEEK_END)
                file.write(b"\n")
                return 0
            file.truncate(whole)
            os.fsync(file.fileno())
        return len(content) - whole


def read_lines(path: Path) -> list[bytes]:
    """The lines as they stand in the file, without their ends; a last one without an end is one too."""
    if not path.exists():
        return []
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"Could not read {path}: {error.strerror or error}.") from error
    return content.removesuffix(b"\n").split(b"\n") if content else []


def read_head(folder: Path) -> Head | None:
    """What the second file says of the last line; None if it is missing or says nothing."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return Head.parse((folder / HEAD).read_text())
    return None


def end_problem(lines: Sequence[bytes], head: Head | None) -> str | None:
    """Why the end of a log is not the one that its head knows; one line more is a process that was killed between."""
    count = len(lines)
    if head is None:
        return (
            f"{HEAD} is missing or damaged, so that lines may have been cut off after line {count}" if count else None
        )
    if head.number > count:
        return f"{plural(head.number - count, 'line')} after line {count} {was(head.number - count)} cut off"
    if head.number < count - 1:
        return f"{HEAD} is of line {head.number}, and {plural(count - head.number, 'line')} more are there"
    if head.number and digest_of(lines[head.number - 1]) != head.hash:
        return f"line {head.number} was changed"
    return None


# -- verifying ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Audit:
    """A log as it was found."""

    records: list[Record]  # those that can be read, in the order of the file
    faults: list[str]  # what was changed, removed or moved, by line
    head: Head  # of the last line


def verify(folder: Path, noted: Head | None = None) -> Audit:
    """Follow the chain from the first line to the head; `noted` is a head that was written down elsewhere."""
    if not (folder / LOG).exists() and not (folder / HEAD).exists():
        raise DataError(
            f"{folder} has no {LOG}: give the folder of a federation, such as clinic/, or of a node, such as "
            "north-node/."
        )
    lines = read_lines(folder / LOG)
    hashes = [digest_of(line) for line in lines]
    found = [read_line(line) for line in lines]
    faults = [
        f"line {i} was changed: it does not have the form of a log line"
        for i, each in enumerate(found, 1)
        if each is None
    ]
    numbers = [each["number"] if each is not None else i for i, each in enumerate(found, 1)]
    faults += order_faults(numbers)
    if not faults:
        faults += chain_faults([each for each in found if each is not None], hashes, read_head(folder))
    if (problem := end_problem(lines, read_head(folder))) is not None and not any(problem in text for text in faults):
        faults.append(problem)
    faults += [
        f"when line {each['number']} was written, it was seen that {each.get('problem')}"
        for each in found
        if each is not None and each["event"] == BROKEN
    ]
    if noted is not None and (noted.number > len(lines) or noted.number < 1 or hashes[noted.number - 1] != noted.hash):
        faults.append(f"line {noted.number} is not the one whose head was noted: the log was rewritten, or cut off")
    head = Head(len(lines), hashes[-1]) if lines else Head()
    return Audit([each for each in found if each is not None], faults, head)


def read_line(line: bytes) -> Record | None:
    """A line as a record; None if it does not have the form of a log line, to the byte."""
    try:
        record = json.loads(line)
        fine = isinstance(record, dict) and set(FIELDS) <= set(record) and type(record["number"]) is int
        return record if fine and canonical(record) == line else None
    except (ValueError, RecursionError):
        return None


def order_faults(numbers: Sequence[int]) -> list[str]:
    """Lines that were removed, put in twice or moved, by the numbers that they bear."""
    there = Counter(numbers)
    faults = [f"line {n} was removed" for n in range(1, max(numbers, default=0) + 1) if n not in there]
    faults += [f"line {n} is there {count} times" for n, count in there.items() if count > 1]
    if not any("times" in text for text in faults):
        faults += [
            f"line {after} was moved: it stands behind line {before}"
            for before, after in itertools.pairwise(numbers)
            if after < before
        ]
    return faults


def chain_faults(records: Sequence[Record], hashes: Sequence[str], head: Head | None) -> list[str]:
    """Lines whose hash is not the one that the next line has.

    Of two such lines the changed one is that whose own hash nobody has: the next line, or the head, vouches for the
    other.
    """
    faults = dict[str, None]()
    for place, record in enumerate(records):
        if record["before"] == (hashes[place - 1] if place else FIRST):
            continue
        if place + 1 < len(records):
            vouched = records[place + 1]["before"] == hashes[place]
        else:
            vouched = head is not None and head == Head(place + 1, hashes[place])
        faults[f"line {place if vouched and place else place + 1} was changed"] = None
    return [*faults]


def check_head(text: str | None) -> Head | None:
    """A head as it is typed."""
    if text is None:
        return None
    if (head := Head.parse(text)) is None:
        raise SettingError(f"head = {text[:80]!r}: write NUMBER:HASH, as 'fedframe federation audit FOLDER' prints it.")
    return head


# -- what it says ------------------------------------------------------------------------------------------------------
def describe(folder: Path, audit: Audit, run: str | None = None) -> list[str]:
    """What left when, and how much in all; a broken chain is an error that names the lines."""
    chosen = [each for each in audit.records if run is None or each.get("run") == run]
    lines = [text for each in chosen if (text := describe_record(each)) is not None]
    left = [each for each in chosen if each["event"] in LEAVING]
    total = sum(size_of(each) for each in left)
    lines.append(f"{plural(len(left), 'message')} with {total:,} bytes left in all.")
    if audit.faults:
        more = f", and {len(audit.faults) - MAX_NAMED} more" if len(audit.faults) > MAX_NAMED else ""
        lines.append(f"{folder / LOG} is not as it was written: {'; '.join(audit.faults[:MAX_NAMED])}{more}.")
    else:
        lines.append(f"The chain of {plural(audit.head.number, 'line')} is intact. Its head: {audit.head}")
    return lines


def compare(node: Audit, organiser: Audit) -> list[str]:
    """What a node's log has sent beside what the organiser's log has received from it, by digest.

    An answer may be lost on its way. One that arrived and never left was sent by someone else, or a log is not true.
    """
    name = next((str(each.get("node")) for each in node.records if each["event"] == "joined"), None)
    if name is None:
        raise DataError("This is not a node's log: it has no 'joined' line; give the node's folder first.")
    left = {str(each.get("digest")): each for each in node.records if each["event"] in ("left", "survey left")}
    arrived = {
        str(each.get("digest")): each
        for each in organiser.records
        if each["event"] == "arrived" and each.get("node") == name
    }
    lines = [f"{len(left.keys() & arrived.keys()):,} messages of {name} are in both logs."]
    for what, one, other in (("left and did not arrive", left, arrived), ("arrived and never left", arrived, left)):
        for digest in one.keys() - other.keys():
            lines.append(f"line {one[digest]['number']} {what}: {describe_record(one[digest])}")
    return lines


LEAVING = (
    "left",
    "survey left",
    "sent",
)  # events with bytes that have left the machine: a node's answers, an organiser's requests


def describe_record(record: Mapping[str, Any]) -> str | None:
    """A line for people; what says nothing about leaving or consent is left out."""
    when = str(record["time"])[:19].replace("T", " ")
    event, details = record["event"], []
    if event in (*LEAVING, "arrived"):
        way = {
            "left": "left",
            "survey left": "left",
            "sent": f"sent to {record.get('node')}",
            "arrived": f"came from {record.get('node')}",
        }
        numbered = [f"{name} {record[name]}" for name in ("run", "round") if record.get(name) is not None]
        kinds = record.get("kinds")
        details = [*numbered, *(map(str, kinds) if isinstance(kinds, list) else ())]
        details += [f"{size_of(record):,} bytes", f"sha256 {str(record.get('digest'))[:16]}"]
        return f"{when} {way[event]}: {', '.join(details)}"
    for name in ("federation", "run", "settings", "changed", "by", "text", "bytes", "members"):
        if (value := record.get(name)) not in (None, "", []):
            shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            details.append(f"{name} {shown[:200]}")
    return f"{when} {event}{': ' if details else ''}{'; '.join(details)}"


def size_of(record: Mapping[str, Any]) -> int:
    """The bytes of a message; 0 in a line that was changed there."""
    found = record.get("bytes")
    return found if type(found) is int else 0


def plural(count: int, what: str) -> str:
    """A count with its noun."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def was(count: int) -> str:
    """The verb of a count."""
    return "was" if count == 1 else "were"
