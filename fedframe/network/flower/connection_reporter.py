"""Reports a node's connection to the organiser: each thing once, and again if it changes or lasts for minutes.

The SuperNode reconnects by itself and logs only that it does; `reachability` finds out why it has to.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

CONNECTED = "SuperNode ID"  # what a SuperNode logs once the SuperLink has let it in
RECONNECTED = "Connection successful after"  # it had lost the SuperLink and has it back
RETRYING = "Connection attempt failed"  # it cannot reach the SuperLink
MARKS = re.compile("|".join((CONNECTED, RECONNECTED, RETRYING)))
REFUSED = "Failed to activate SuperNode"  # no such key, or its node counts as connected: Flower does not say which
TERMINATED = "SuperNode terminated gracefully"  # nobody here asked it to: it does so when the SuperLink answers 401
TOLERATED_GAP = 5.0  # seconds without the SuperLink that are not worth a report
CHECK_INTERVAL = 10.0  # seconds between two checks of the reason
REPEAT_INTERVAL = 300.0  # seconds after which the same reason is reported again
LINGERING = 75.0  # seconds; for a minute a SuperLink takes a node that was killed for one that is connected


class ConnectionReporter:
    """Reports what becomes of the connection."""

    def __init__(
        self, address: str, name: str, notify: Callable[[str], None], find_reason: Callable[[], str | None]
    ) -> None:
        self.address, self.name, self.notify, self.find_reason = address, name, notify, find_reason
        self.connected, self.ever_connected, self.reported_trouble = False, False, False
        self._failing_since: float | None = None  # since when a connected SuperNode retries in vain
        self._refused_since: float | None = None  # since when the SuperLink does not let the node in
        self._reason, self._reported_at, self._checked_at = "", float("-inf"), float("-inf")

    def read_log(self, log: str) -> None:
        """Take in the end of the SuperNode's log."""
        now, marks = time.monotonic(), MARKS.findall(log)
        if marks and marks[-1] != RETRYING:
            self._failing_since = None
            if not self.connected:
                self._report_connected()
        elif marks and self.connected:
            self._failing_since = now if self._failing_since is None else self._failing_since
            if now - self._failing_since >= TOLERATED_GAP:
                self.report_trouble(self.find_reason())
        elif not self.connected:
            self.check()

    def check(self) -> None:
        """While there is no connection, find out why from time to time."""
        if not self.connected and time.monotonic() - self._checked_at >= CHECK_INTERVAL:
            reason = self.find_reason()
            self._checked_at = time.monotonic()
            if reason is not None:
                self.report_trouble(reason)

    def supernode_ended(self, log: str, summary: str) -> None:
        """Report that the SuperNode ended, with this log and its summary."""
        reason = self.find_reason()  # why a network fails Flower logs at length or not at all
        self._checked_at = time.monotonic()
        self.report_trouble(reason or self.refusal(log) or summary)

    def refusal(self, log: str) -> str | None:
        """Why the SuperLink refuses this node, as far as the log shows."""
        if REFUSED not in log:
            self._refused_since = None
            signature = "the organiser refused its signature (are both clocks right?), or someone ended its SuperNode"
            return signature if TERMINATED in log else None
        self._refused_since = time.monotonic() if self._refused_since is None else self._refused_since
        if time.monotonic() - self._refused_since < LINGERING:
            return (
                f"{self.name} is not let in yet: it is connected already, or was a minute ago (after a kill its place "
                "is free again within a minute)"
            )
        key = "" if self.ever_connected else ", or its key is not of this federation (an old or a wrong kit)"
        return f"{self.name} is not let in: it is connected from another place with the same kit{key}"

    def report_trouble(self, reason: str | None) -> None:
        """Report that there is no connection, with the reason if that is known."""
        lost, now = self.connected, time.monotonic()
        self.connected, self.reported_trouble, self._failing_since = False, True, None
        if lost:
            self._report(
                f"Lost the organiser at {self.address}{f': {reason}' if reason else ''}; trying again.", reason, now
            )
        elif reason is not None and (reason != self._reason or now - self._reported_at >= REPEAT_INTERVAL):
            self._report(f"Not connected: {reason}; trying again.", reason, now)

    def _report_connected(self) -> None:
        if not self.ever_connected:
            self.notify(f"Connected to {self.address}; waiting for work.")
        elif self.reported_trouble:
            self.notify("Connected again.")
        self.connected, self.ever_connected, self.reported_trouble, self._refused_since = True, True, False, None
        self._reason, self._reported_at = "", float("-inf")

    def _report(self, text: str, reason: str | None, now: float) -> None:
        self._reason, self._reported_at = reason or "", now
        self.notify(text)
