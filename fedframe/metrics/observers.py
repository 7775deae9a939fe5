"""What is measured while a run goes on: the setting `measure`.

Measures look at the round's replies and at the model, and change nothing: the trained model is the same, bit for bit,
with and without them. They keep nothing between rounds, so that a resumed run goes on as if it had never stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from fedframe.core.job import Job
from fedframe.core.message import Message
from fedframe.core.server import Observer, RoundRecord, Server
from fedframe.metrics.local_models import LocalModels
from fedframe.metrics.round_cka import CkaInRounds
from fedframe.metrics.round_collapse import CollapseInRounds
from fedframe.metrics.round_drift import DriftInRounds


class RoundMeasure(Protocol):
    """One measure: how many clients' updates it needs (None: all), and what it adds to a round's record."""

    most: int | None

    def add(self, server: Server, record: RoundRecord, local: LocalModels) -> None:
        """Measure, and write it into the record."""


MEASURES: dict[str, Callable[[Job], RoundMeasure]] = {
    "collapse": CollapseInRounds,
    "drift": DriftInRounds,
    "cka": CkaInRounds,
}


class RoundMeasures:
    """Looks on for all measures that were asked for, with one copy of the updates they need."""

    def __init__(self, job: Job, note: Callable[[str], None]) -> None:
        self.measures = [MEASURES[name](job) for name in job.settings.measures]
        needs = [measure.most for measure in self.measures]
        self.local = LocalModels(job, None if None in needs else max(need or 0 for need in needs))
        self.all = None in needs
        self.note = note
        self._said = False

    def begin(self, server: Server, clients: Sequence[int]) -> None:
        """Prepare to keep updates; say so if they are too many."""
        self.local.begin(server, clients)
        if self.all and not self._said and len(clients) > self.local.most:
            self._said = True
            self.note(
                f"Drift is measured for {self.local.most} of the {len(clients)} clients of a round, a fixed draw: more "
                "updates are not kept in memory at once."
            )

    def on_reply(self, reply: Message) -> None:
        """Keep what is needed of a reply."""
        self.local.on_reply(reply)

    def end(self, server: Server, record: RoundRecord) -> None:
        """Measure."""
        before = dict(record.figures)
        for measure in self.measures:
            measure.add(server, record, self.local)
        # A net that has diverged gives no figures: JSON knows no NaN.
        ours = {name: value for name, value in record.figures.items() if math.isfinite(value)}
        record.figures = {**before, **ours}
        self.local.updates = {}  # free until the next round


def observers(job: Job, note: Callable[[str], None]) -> list[Observer]:
    """Who looks on in a run's rounds: nobody, unless the setting `measure` asks for it."""
    return [RoundMeasures(job, note)] if job.settings.measures else []
