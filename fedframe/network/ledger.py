"""A node's own ledger of privacy: what all runs together have spent, and the limit beyond which it answers no more.

Every update that leaves under client-level privacy is an event: Gaussian noise of so many times the bound on updates.
Events of all runs are composed (Renyi accounting, dp-accounting), whoever asked for them and whatever became of the
run. An event is on the disk before the update is even computed; the same event (run, client and round) counts once.

All that one ledger holds adds up, also if the data have changed a little in between: a sample that was there before is
in both. Who takes part in several federations with the same data gives them one ledger (`join --ledger`).

A release that hides single samples only (`analytic.protect=sample`) counts like the others. What hides a client hides
each of its samples, so the sum is right for samples; for the client as a whole such a release has no bound, and
`describe` says that the sum is of samples.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from filelock import FileLock

from fedframe.core.privacy import composed_epsilon
from fedframe.errors import DataError, ProtocolError
from fedframe.util.durable import append_record, read_records


class EpsilonLedger:
    """Events on disk, and what they come to."""

    def __init__(self, path: Path, limit: float | None = None) -> None:
        self.path, self.limit = path, limit
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = FileLock(path.with_name(f".{path.name}.lock"))  # nodes of several federations may share a ledger
        self.events()  # a damaged one is found before anything is answered

    def events(self) -> dict[str, float]:
        """The noise of every event by its key."""
        return self._read()[0]

    def _read(self) -> tuple[dict[str, float], float]:
        """The events, and the smallest delta that any of them was promised for: a limit must not grow with another."""
        try:
            records = read_records(self.path)
            events = {str(record["key"]): float(record["noise"]) for record in records}
            return events, min((float(record["delta"]) for record in records), default=1.0)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{self.path} is no ledger of privacy; put an undamaged copy in its place.") from error

    def spend(self, key: str, noise: float, delta: float, protects: str = "clients") -> float:
        """Enter an event, unless it was before, and return the epsilon of all; beyond the limit it is refused."""
        with self._lock:
            events, smallest = self._read()
            if key in events:
                return self.total(events, min(delta, smallest))
            after = self.total({**events, key: noise}, min(delta, smallest))
            if self.limit is not None and after > self.limit:
                raise ProtocolError(
                    f"This node's own limit of privacy is reached: epsilon would be {after:.3g} over all its runs, and "
                    f"its limit is {self.limit:g}."
                )
            append_record(self.path, {"key": key, "noise": noise, "delta": delta, "protects": protects})
            return after

    def spent(self, delta: float) -> float:
        """The epsilon of all events so far, for this delta or a smaller one that was promised before."""
        events, smallest = self._read()
        return self.total(events, min(delta, smallest))

    @staticmethod
    def total(events: dict[str, float], delta: float) -> float:
        """The epsilon of these events together."""
        return composed_epsilon(tuple(sorted(Counter(events.values()).items())), delta)

    def describe(self, delta: float) -> str:
        """What was spent, as a sentence for the people at the node."""
        limit = f" of {self.limit:g}" if self.limit is not None else " (no limit: join --epsilon-limit)"
        samples = any(record.get("protects") == "samples" for record in read_records(self.path))
        of = ", for each of your samples" if samples else ""
        return (
            f"Privacy spent in all runs: epsilon {self.spent(delta):.3g}{limit} for delta "
            f"{min(delta, self._read()[1]):g}{of} ({self.path})."
        )
