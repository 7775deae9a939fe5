"""`fedframe federation update`: a finished training gets the sums of nodes that came late, or loses those of one node.

For methods whose model is fitted from sums. Kept sums are used again; connected nodes whose sums are missing are asked
for theirs; the model is solved again and sent to all nodes, which score it and make their own models from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedframe.core.engine import Engine
from fedframe.core.imbalance import told_metric
from fedframe.core.job import Job
from fedframe.core.kept_statistics import SUMS, statistics_path
from fedframe.errors import SettingError
from fedframe.federation.agreement import Agreement
from fedframe.federation.audited import AuditedTransport
from fedframe.federation.folder import FederationFolder
from fedframe.federation.serve import connect_superlink
from fedframe.federation.start import SuperLinkTransport, check_same_members, member_record
from fedframe.jobs.build import JobMaker
from fedframe.network.engine import NetworkEngine, check_hello
from fedframe.network.node import template_digest
from fedframe.network.transport import Transport
from fedframe.runs.federated import NOTES
from fedframe.runs.folder import RunFolder
from fedframe.runs.join_forget import Change, check_forgettable, check_run, find_client
from fedframe.runs.organiser import ABSENT, nodes_federation
from fedframe.runs.progress import Display, choose_display
from fedframe.runs.refit import KeptStatistics
from fedframe.runs.result import RunResult
from fedframe.runs.roster import Roster
from fedframe.util.files import read_json, write_json


def update(folder: FederationFolder, *, forget: str | None = None, progress: bool | Display = True) -> RunResult:
    """Solve the last training again with the sums of all nodes that are there now, or without those of one."""
    agreement, run = folder.agreement(), last_run(folder)
    settings = check_run(run, "federation update")
    check_same_members(agreement, run.path)
    if settings.secure:
        raise SettingError(
            f"{run.path} was added up securely: sums with one node more, or one fewer, beside those of before, would "
            "show what that node alone has sent; begin a new training with: "
            f"fedframe federation start {folder.path} --new"
        )
    with folder.exclusive("start", "trains"), choose_display(progress) as display, run.alone():
        roster = Roster.read(run.path)
        done = "Sent the model to the nodes"
        if forget is not None:
            number, name = find_client(run, settings, roster, forget)
            if roster.forgotten_at(name) is None:
                check_forgettable(run, settings, number, name, roster)
                roster, done = roster.without(number, name), f"Forgot client {name}"
        transport = AuditedTransport(SuperLinkTransport(connect_superlink(folder)), folder.audit)
        try:
            notes = read_json(run.path / NOTES)
            change = FederationChange(run, settings, roster, display)
            change.agreement, change.transport, change.notes = agreement, transport, notes
            late = change.ask_late_members()
            for name in late:
                change.roster = change.roster.with_change("join", name)
                done = f"Added {', '.join(late)}" if forget is None else f"{done}, added {', '.join(late)}"
            change.perform(done, [])
        finally:
            transport.close()
    return RunResult(run.path, settings)


def last_run(folder: FederationFolder) -> RunFolder:
    """The last training."""
    found = sorted(folder.runs.glob("[0-9]*"), key=lambda path: int(path.name)) if folder.runs.is_dir() else []
    if not found:
        raise SettingError(f"{folder.path} has no training yet: fedframe federation start {folder.path}")
    return RunFolder.open(found[-1])


@dataclass
class FederationChange(Change):
    """A federation's run as it will be, with its nodes at hand."""

    agreement: Agreement = field(init=False)
    transport: Transport = field(init=False)
    notes: dict[str, Any] = field(init=False)

    def ask_late_members(self) -> list[str]:
        """Who was absent and is connected now: how many samples it has is noted."""
        connected = self.transport.nodes()
        names, members = self.agreement.members, self.notes["members"]
        late = [
            number
            for number, member in enumerate(members)
            if member.get(ABSENT) and member["name"] in connected and number not in self.roster.forgotten
        ]
        if late:
            engine = self.network(self.make_job())
            replies = engine.hello(len(late), late)
            check_hello(engine.job, replies, template_digest(engine.job))
            for number in late:
                members[number] = member_record(names[number], replies[number].numbers)
        return [names[number] for number in late]

    def never_heard(self) -> list[int]:
        """Who was lost before it sent any sums, and still is: the model is without it, as before."""
        if not (self.folder.path / SUMS).exists():  # nobody's were kept
            return []
        connected, members = self.transport.nodes(), self.agreement.members
        path = partial(statistics_path, self.folder.path, stage=0)
        return [k for k, name in enumerate(members) if name not in connected and not path(client=k).exists()]

    def make_job(self) -> Job:
        """The run's job with all nodes that are in it now."""
        left = {*self.roster.forgotten, *self.never_heard()}
        federation = nodes_federation(self.agreement.form, self.notes, self.settings, left)
        return JobMaker(self.settings, federation, None).make(self.folder.path)

    def network(self, job: Job) -> NetworkEngine:
        """The nodes; requests are numbered in the run's own folder, so that none is taken for an old one."""
        there = replace(job, folder=self.folder.path)
        metric = told_metric(self.agreement.settings, self.settings)
        return NetworkEngine(there, self.transport, self.agreement.members, self.notes["run"], self.note, metric)

    def open_engine(self, job: Job) -> Engine:
        """The nodes that are connected."""
        return self.network(job)

    def fill(self, stage: Path, job: Job) -> tuple[KeptStatistics, dict[str, Any]]:
        """As for any run, and what is known of the nodes."""
        found = super().fill(stage, job)
        write_json(stage / NOTES, self.notes)
        return found
