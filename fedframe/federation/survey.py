"""`fedframe federation survey`: the members report on their data, and their report makes the agreement.

Four questions over the same carrier as a training: names and kinds; two sums; and the agreement that follows, which
every member checks against its data. A survey that was cut off goes on: its name and options are kept, and a member
answers the same question with the same answer.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedframe.core.imbalance import IMBALANCED
from fedframe.errors import DataError, RunError, SettingError
from fedframe.federation.agreement import Agreement
from fedframe.federation.approval import settings_digest
from fedframe.federation.audited import AuditedTransport
from fedframe.federation.create import check_federation
from fedframe.federation.folder import OUTCOME, FederationFolder
from fedframe.federation.serve import connect_superlink
from fedframe.federation.start import SuperLinkTransport
from fedframe.federation.survey_messages import (
    AGREEMENT,
    FORM,
    MAX_BYTES,
    SurveyRequest,
    add_up,
    decode_answer,
)
from fedframe.federation.survey_plan import MEANS, SPREADS, Findings, around_of, make_form, make_plan, names_of
from fedframe.network.masks import KEY, RingVector
from fedframe.network.transport import REPEAT_DELAY, Transport
from fedframe.util.files import read_json, write_json
from fedframe.util.text import percent

STATE = "survey.json"  # in the folder's state/
POLL_INTERVAL = 0.25  # seconds
RETRY_INTERVAL = 5.0  # seconds before a member whose answer was lost is asked again
REMINDER_INTERVAL = 60.0
STAGES = (FORM, MEANS, SPREADS, AGREEMENT)


@dataclass(frozen=True)
class Answer:
    """What a member has answered."""

    body: Mapping[str, Any]
    vector: RingVector | None = None


def survey(
    folder: FederationFolder,
    notify: Callable[[str], None],
    *,
    columns: str = "most",
    size: int | None = None,
    new: bool = False,
) -> Agreement:
    """Ask all members, make the agreement, and have it approved by all."""
    agreement = folder.agreement()
    check_draft(folder, agreement)
    with folder.exclusive("start", "trains or surveys"):
        state = open_state(folder, columns, size, new)
        transport = AuditedTransport(SuperLinkTransport(connect_superlink(folder)), folder.audit)
        try:
            asking = Survey(transport, agreement.members, state["id"], notify)
            if agreement.is_draft:
                folder.audit.add("survey begins", survey=state["id"], members=list(agreement.members))
                findings, agreement = settle(asking, agreement, state)
                lines = outcome_lines(findings)
                outcome = {"survey": state["id"], "lines": lines, "classes": findings.counts}
                write_json(folder.state / OUTCOME, outcome)
                for line in lines:
                    notify(line)
                folder.change(agreement)
            asking.confirm(agreement)
        finally:
            transport.close()
    digest = settings_digest(agreement)
    folder.audit.add("survey over", survey=state["id"], settings=digest)
    notify(f"All members have the agreement now (digest of its settings: {digest}); train with: "
           f"fedframe federation start {folder.path}")  # fmt: skip
    return agreement


def check_draft(folder: FederationFolder, agreement: Agreement) -> None:
    """Refuse a federation whose data were described when it was made."""
    if not agreement.is_draft and agreement.surveyed is None:
        raise SettingError(
            f"{folder.path} has an agreement on data already; a survey is for a federation that is made without one: "
            "fedframe federation new ... --survey."
        )


def open_state(folder: FederationFolder, columns: str, size: int | None, new: bool) -> dict[str, Any]:
    """The survey's name and options: those of one that was cut off, unless a new one is asked for."""
    path = folder.state / STATE
    if path.exists() and not (new and folder.agreement().is_draft):
        return read_json(path)
    state = {"id": secrets.token_hex(8), "columns": columns, "size": size}
    write_json(path, state)
    return state


def settle(asking: Survey, draft: Agreement, state: Mapping[str, Any]) -> tuple[Findings, Agreement]:
    """The stages up to the agreement."""
    answers = asking.ask(FORM, {})
    for member, answer in answers.items():
        check_form(member, answer.body)
    forms = {member: answer.body for member, answer in answers.items()}
    findings = make_plan(forms, str(state["columns"]), state["size"])
    plan, keys = findings.plan, [str(answers[member].body["key"]) for member in asking.members]
    body = {"plan": plan.to_json(), "keys": keys}
    means = asking.sums(MEANS, body, names_of(plan, MEANS))
    around = around_of(plan, means)
    spreads = asking.sums(SPREADS, {**body, "around": around}, names_of(plan, SPREADS))
    form = make_form(findings, means, spreads, len(forms))
    findings.counts = {name: round(means[f"class {name}"]) for name in plan.classes}
    findings.notes[:0] = class_lines(findings.counts)
    settings = check_federation(draft.settings, form, draft.members)
    least = max(int(each["least"]) for each in forms.values())
    return findings, replace(draft, form=form, settings=settings, version=draft.version + 1, surveyed=least)


def class_lines(counts: Mapping[str, int]) -> list[str]:
    """How frequent the classes are, and what always naming the most frequent one would score."""
    named = ", ".join(f"{name} {count}" for name, count in counts.items())
    lines = [f"Rows by class over all members (rounded down at each): {named}."]
    most, total = max(counts, key=lambda name: counts[name]), sum(counts.values())
    if total and counts[most] / total > IMBALANCED:
        share = percent(counts[most] / total)
        lines.append(f"{share} of the rows are {most!r}: the majority class alone would score {share} in accuracy.")
    return lines


def check_form(member: str, form: Mapping[str, Any]) -> None:
    """Refuse a report that a member's program would not give."""
    columns = form.get("columns", {})
    fine = (
        isinstance(form.get("kind"), str)
        and isinstance(form.get("classes"), list)
        and type(form.get("least")) is int
        and KEY.fullmatch(str(form.get("key"))) is not None
        and isinstance(columns, dict)
        and all(isinstance(each, dict) and isinstance(each.get("kind"), str) for each in columns.values())
        and all(str(name).isprintable() and len(str(name)) <= 200 for name in (*columns, *form["classes"]))
    )
    if not fine:
        raise RunError(f"The report of {member} cannot be read; install the same Fedframe everywhere.")


def outcome_lines(findings: Findings) -> list[str]:
    """What fits and what does not, as a table."""
    rows = [("what", "is", "who has it", "agreed"), *findings.rows]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=False)) + f"  {row[3]}" for row in rows
    ]
    return [*(line.rstrip() for line in lines), *findings.notes]


class Survey:
    """Asks all members, for as long as it takes."""

    def __init__(self, transport: Transport, members: Sequence[str], name: str, notify: Callable[[str], None]) -> None:
        self.transport, self.members, self.name, self.notify = transport, tuple(members), name, notify

    def sums(self, stage: str, body: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
        """A sum over all members, by the names of its numbers."""
        answers = self.ask(stage, body, len(names))
        vectors = [answer.vector for answer in answers.values() if answer.vector is not None]
        if len(vectors) < len(self.members):
            raise RunError("A member's part of the sum is missing.")
        return dict(zip(names, add_up(vectors), strict=True))

    def confirm(self, agreement: Agreement) -> None:
        """Give all members the agreement."""
        digest = settings_digest(agreement)
        for member, answer in self.ask(AGREEMENT, {"agreement": agreement.text()}).items():
            if answer.body.get("approved") != digest:
                raise RunError(f"{member} has another agreement; install the same Fedframe everywhere.")

    def ask(self, stage: str, body: Mapping[str, Any], size: int | None = None) -> dict[str, Answer]:
        """Every member's answer; one that refuses ends the survey, and says why."""
        request = SurveyRequest(self.name, stage, body)
        payload, found = request.to_bytes(), dict[str, Answer]()
        pending: dict[str, str] = {}  # the member by ticket
        sent: dict[str, float] = {}  # when a member was asked last
        again: dict[str, float] = {}  # when a member may be asked again
        said, remind_at = "", time.monotonic()
        while len(found) < len(self.members):
            connected, now = self.transport.nodes(), time.monotonic()
            for member in self.members:
                asked = member in found or (member in pending.values() and now < sent[member] + REPEAT_DELAY)
                if not asked and member in connected and now >= again.get(member, 0.0):
                    sent[member] = now
                    pending[self.transport.send(member, payload, STAGES.index(stage), None)] = member
            for delivery in self.transport.collect(dict.fromkeys(pending, MAX_BYTES)):
                if delivery.ticket not in pending:
                    continue
                member = pending.pop(delivery.ticket)
                again[member] = time.monotonic() + RETRY_INTERVAL
                if delivery.doubtful or member in found:
                    continue
                if delivery.problem:
                    self.notify(f"{member}: {delivery.problem}; asking again.")
                    continue
                try:
                    answer, vector = decode_answer(delivery.content, request, size)
                except DataError as error:
                    raise RunError(f"The answer of {member} cannot be used: {error}") from error
                if "refused" in answer:
                    raise RunError(f"{member} does not answer ({stage}): {str(answer['refused'])[:500]}")
                found[member] = Answer(answer, vector)
            missing = [member for member in self.members if member not in found]
            if missing:
                text = f"Survey, {stage}: waiting for {', '.join(missing)}."
                if (
                    text != said and not set(missing) <= set(pending.values())
                ) or time.monotonic() >= remind_at + REMINDER_INTERVAL:
                    said, remind_at = text, time.monotonic()
                    self.notify(text)
                time.sleep(POLL_INTERVAL)
        return {member: found[member] for member in self.members}
