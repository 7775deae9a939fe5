"""What comes after the last round, once more: for a finished run that has one client more, or one fewer.

The server stage, the clients' own models and the final scores are made as at the end of a run, in a folder of their
own (`staging`). Clients' statistics that were kept are used again where they still answer what would be asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Size, Tensor

from fedframe.core.engine import Engine
from fedframe.core.job import Job, count_personal
from fedframe.core.kept_statistics import is_kept, kept_statistics, request_digest
from fedframe.core.message import LOST, Message
from fedframe.core.server import Progress, Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import DataError, RunError, SettingError
from fedframe.runs.folder import CLIENT_SCORES, RunFolder
from fedframe.runs.new_client_scores import score_new_clients
from fedframe.runs.predictor import save_model
from fedframe.runs.roster import Roster
from fedframe.runs.round_files import SUMMARY
from fedframe.runs.summary import client_table, spreads, summarise
from fedframe.util.files import read_json, write_json, write_sealed

# What a run has cost, which later changes leave as it was.
TIME_AND_MEMORY = ("seconds", "seconds_in_rounds", "cpu_seconds", "peak_memory_mb")
BYTES = ("bytes_up", "bytes_down", "bytes_by_part", "bytes_once", "stages", "bytes_up_total", "bytes_down_total")
COSTS = (*TIME_AND_MEMORY, *BYTES, "privacy", "changed_code", "lines")


@dataclass
class KeptStatistics(Engine):
    """Gives kept statistics where they answer the very same request; whatever else is asked, another engine does."""

    job: Job
    engine: Engine
    kept: Path  # the folder of the run
    guests: Mapping[int, Job | None] = field(default_factory=dict)  # who has joined, with its data if they are here
    reused: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.evaluation = self.engine.evaluation

    def run(self, request: Message, units: Sequence[int]) -> Iterator[Message]:
        """Have a request performed; those who have joined come after all others."""
        if request.kind != "statistics":
            yield from self.engine.run(request, units)
            return
        digest = request_digest(self.job, request)
        found = {unit for unit in (*units, *self.guests) if is_kept(self.kept, unit, request, digest)}
        self.reused |= found
        self.asked |= {*units, *self.guests} - found
        missing = [unit for unit in units if unit not in found]
        answers = self.engine.run(request, missing) if missing else iter(())
        for unit in units:
            reply = kept_statistics(self.kept, unit, request) if unit in found else next(answers)
            if reply.kind == LOST:  # without it the model would lose a client that nobody wanted to take out
                name, reason = self.job.federation.names[unit], reply.numbers["reason"]
                raise RunError(f"{name} has not sent its sums ({reason}); the run stays as it was. Try again later.")
            yield reply
        for number, job in self.guests.items():
            kept = number in found
            yield kept_statistics(self.kept, number, request) if kept else guest_reply(job, request, number)

    # -- the rest is the other engine's --------------------------------------------------------------------------------
    def processes(self) -> list[int]:
        """As the other engine."""
        return self.engine.processes()

    def close(self) -> None:
        """End what the other engine started."""
        self.engine.close()

    def expect(self, kind: str, shapes: Mapping[str, Size]) -> None:
        """As the other engine."""
        self.engine.expect(kind, shapes)

    def represented_clients(self, reply: Message) -> list[int]:
        """As the other engine."""
        return self.engine.represented_clients(reply)

    def sample_limit(self, client: int) -> int | None:
        """As the other engine; those who have joined are not among its clients."""
        return None if client in self.guests else self.engine.sample_limit(client)

    def state(self) -> dict[str, Tensor]:
        """As the other engine."""
        return self.engine.state()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """As the other engine."""
        self.engine.restore(tensors)


def guest_reply(job: Job | None, request: Message, number: int) -> Message:
    """The statistics of a client that has joined."""
    if job is None:
        raise SettingError(
            "The sums of a client that has joined must be computed again, and its data are not there, or came from "
            "Python: put them back, or forget that client first and let it join again afterwards."
        )
    engine = InlineEngine(job)
    try:
        reply = next(engine.run(request, [0]))
        return replace(reply, unit=number, tensors={name: each.clone() for name, each in reply.tensors.items()})
    finally:
        engine.close()


def restored_server(job: Job, engine: Engine, folder: RunFolder, note: Callable[[str], None]) -> Server:
    """The server as the last round has left it."""
    server = Server(job, engine, note)
    found = folder.checkpoint()
    if found is not None:
        round, tensors, notes = found
        if notes["fingerprint"] != job.fingerprint():
            raise DataError(f"The data of {folder.path} have changed since the run; put them back as they were.")
        usable = {name: t for name, t in tensors.items() if server.state.usable(name.removeprefix("state/"), t)}
        server.restore(usable, round)
    elif job.settings.rounds:
        raise DataError(f"{folder.path} has no checkpoint: what its rounds have left is gone; run it again.")
    return server


def conclude_again(server: Server, folder: RunFolder, progress: Progress) -> tuple[dict[str, Any], dict[str, Any]]:
    """The stages after the last round; gives the content of summary.json and that of client_scores.json."""
    job = server.job
    before = read_json(folder.path / SUMMARY)
    final = server.conclude(progress)
    if server.problems:
        raise RunError(f"A client's sums were refused: {server.problems[0]}; the run stays as it was.")
    new = None
    if job.federation.with_new_clients is not None:
        new = score_new_clients(server, server.note, progress)
    costs = {"seconds": 0.0, "cpu_seconds": 0.0, "peak_memory": 0}
    summary = summarise(job, folder.metrics(), final, new, costs, server.traffic, server.stages)
    table: dict[str, Any] = client_table(job, final)
    summary["spread"] = spreads(table)
    summary |= {name: before[name] for name in COSTS if name in before}
    return summary, {**table, **({} if new is None else {"new": new.by_client()})}


def write_results(
    stage: Path, server: Server, roster: Roster, summary: Mapping[str, Any], table: Mapping[str, Any]
) -> None:
    """The files of the changed run, in a folder of their own."""
    save_model(stage, server.job, server.model, server.fixed_overrides)
    write_sealed(stage / CLIENT_SCORES, json.dumps(table) + "\n")
    kept = {"personal_models": count_personal(stage), "changes": list(roster.changes)}
    write_json(stage / SUMMARY, {**summary, **kept})
    roster.write(stage)
