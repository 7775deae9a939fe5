"""What a node says about its line to the organiser: each thing once, and again if it changes or lasts for minutes.

The SuperNode tries again by itself and tells its log only that it does; why, a look of our own finds out (`reach`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

CONNECTED = "SuperNode ID"  # what a SuperNode says once the SuperLink has let it in
AGAIN = "Connection successful after"  # it had lost the SuperLink and has it back
TRYING = "Connection attempt failed"  # it cannot reach the SuperLink
MARKS = re.compile("|".join((CONNECTED, AGAIN, TRYING)))
REFUSED = "Failed to activate SuperNode"  # no such key, or its node counts as connected: Flower does not say which
SIGNATURE = "SuperNode terminated gracefully"  # nobody here asked it to: it does so when the SuperLink answers 401
HICCUP = 5.0  # seconds without the SuperLink that nobody needs to hear of
LOOK = 10.0  # seconds between two looks at why
REMIND = 300.0  # seconds after which the same reason is said again
LINGERS = 75.0  # seconds; for a minute a SuperLink takes a node that was killed for one that is there


class ConnectionReporter:
    """Says what becomes of the line."""

    def __init__(self, address: str, name: str, note: Callable[[str], None], look: Callable[[], str | None]) -> None:
        self.address, self.name, self.note, self.find_reason = address, name, note, look
        self.connected, self.ever, self.troubled = False, False, False
        self._failing: float | None = None  # since when a connected SuperNode tries in vain
        self._refused: float | None = None  # since when the SuperLink does not let the node in
        self._said, self._said_at, self._looked = "", float("-inf"), float("-inf")

    def pop_replies(self, said: str) -> None:
        """Take in the end of the SuperNode's log."""
        now, marks = time.monotonic(), MARKS.findall(said)
        if marks and marks[-1] != TRYING:
            self._failing = None
            if not self.connected:
                self._found()
        elif marks and self.connected:
            self._failing = now if self._failing is None else self._failing
            if now - self._failing >= HICCUP:
                self.trouble(self.find_reason())
        elif not self.connected:
            self.look()

    def look(self) -> None:
        """While there is no line: find out why, from time to time."""
        if not self.connected and time.monotonic() - self._looked >= LOOK:
            reason = self.find_reason()
            self._looked = time.monotonic()
            if reason is not None:
                self.trouble(reason)

    def ended(self, said: str, why: str) -> None:
        """The SuperNode gave up, with this log, which comes down to this."""
        reason = self.find_reason()  # why a network fails Flower says at length or not at all
        self._looked = time.monotonic()
        self.trouble(reason or self.refusal(said) or why)

    def refusal(self, said: str) -> str | None:
        """What the SuperLink has against this node."""
        if REFUSED not in said:
            self._refused = None
            signature = "the organiser refused its signature (are both clocks right?), or somebody ended its SuperNode"
            return signature if SIGNATURE in said else None
        self._refused = time.monotonic() if self._refused is None else self._refused
        if time.monotonic() - self._refused < LINGERS:
            return (
                f"{self.name} is not let in yet: it is connected already, or was a minute ago (after a kill its place "
                "is free again within a minute)"
            )
        key = "" if self.ever else ", or its key is not of this federation (an old or a wrong kit)"
        return f"{self.name} is not let in: it is connected from another place with the same kit{key}"

    def trouble(self, reason: str | None) -> None:
        """There is no line: say so, with the reason if that is known."""
        lost, now = self.connected, time.monotonic()
        self.connected, self.troubled, self._failing = False, True, None
        if lost:
            self._say(
                f"Lost the organiser at {self.address}{f': {reason}' if reason else ''}; trying again.", reason, now
            )
        elif reason is not None and (reason != self._said or now - self._said_at >= REMIND):
            self._say(f"Not connected: {reason}; trying again.", reason, now)

    def _found(self) -> None:
        if not self.ever:
            self.note(f"Connected to {self.address}; waiting for work.")
        elif self.troubled:
            self.note("Connected again.")
        self.connected, self.ever, self.troubled, self._refused = True, True, False, None
        self._said, self._said_at = "", float("-inf")

    def _say(self, text: str, reason: str | None, now: float) -> None:
        self._said, self._said_at = reason or "", now
        self.note(text)
