"""A node's side of a survey: what would leave is printed and approved first, and a survey is answered once.

The node stays for the agreement that the survey makes, checks its data against it, and takes part from then on;
nobody at it writes down what data look like.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from fedframe.errors import DataError, FedframeError, ProtocolError, RunError, SettingError
from fedframe.federation.agreement import Agreement
from fedframe.federation.approval import (
    DATA,
    POLICIES,
    approve,
    approved_terms,
    ask_person,
    changes,
    settings_digest,
    terms_of,
)
from fedframe.federation.audit import AuditLog
from fedframe.federation.audited import message_of
from fedframe.federation.create import check_federation
from fedframe.federation.join import OUTGOING_LOG, Limits, Membership, add_to_log, report_faults
from fedframe.federation.kit import Kit
from fedframe.federation.node_folder import explain_os_errors, lock_node_folder
from fedframe.federation.survey_data import CELLS, IMAGES, LEAST, TABLE, OwnData, check_least, read_own_data
from fedframe.federation.survey_messages import (
    AGREEMENT,
    FORM,
    SurveyRequest,
    encode_answer,
    is_survey,
    mask,
    read_group,
)
from fedframe.federation.survey_plan import MEANS, SPREADS, SurveyPlan, contributions, names_of
from fedframe.network.flower.node import Node, NodeConfig
from fedframe.network.masker import Masker
from fedframe.network.masks import fingerprint
from fedframe.util.allowed_code import check_named
from fedframe.util.durable import write_durably
from fedframe.util.files import json_bytes, read_json

FOLDER = "survey"  # in a node's folder: what it has answered, for ever
LEFT_OUT = "left-out.json"  # columns that cannot be read as agreed here, and count as missing


class SurveyNode:
    """A node that has a draft of an agreement, until the survey has settled it."""

    def __init__(
        self,
        kit: Kit,
        data: str,
        folder: Path,
        notify: Callable[[str], None],
        *,
        least: int = LEAST,
        label: str | None = None,
        limits: Limits | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.kit, self.data, self.folder, self.notify = kit, data, folder, notify
        self.limits, self.options, self.label = limits or Limits(), dict(options or {}), label
        self.limits.check(kit)
        settings = kit.agreement.settings
        self.own: OwnData = read_own_data(data, check_least(least), label or settings.label, settings.seed)
        self.audit = AuditLog(folder)
        self.survey: str | None = None  # the one that was approved here
        self.member: Membership | None = None  # once there is an agreement
        self.handler: Callable[[bytes], bytes] | None = None
        self.lock: FileLock | None = None
        self.masker: Masker | None = None

    @property
    def done(self) -> bool:
        """Whether a run is over."""
        return self.member is not None and self.member.done

    # -- before anything leaves ----------------------------------------------------------------------------------------
    def describe_outgoing(self) -> list[str]:
        """What would leave, with every value that it holds."""
        own, form = self.own, self.own.form()
        name = self.kit.agreement.name
        lines = [f"{name} has no agreement on data yet; its organiser makes one from a survey. What leaves this node:"]
        lines.append(f"  as it is  kind of data ({own.kind}), a public key, nothing of fewer than {own.least} rows")
        lines.append(f"  as it is  classes that at least {own.least} rows have: {', '.join(form['classes'])}")
        if own.kind == TABLE:
            lines.append(f"  as it is  name of the label's column: {own.label}")
            lines += [f"  as it is  {text}" for text in describe_columns(own)]
        elif own.kind == IMAGES:
            sizes = ", ".join(f"{h}x{w}" for h, w in own.sizes)
            lines.append(f"  as it is  usual sizes of images: {sizes}; {'colour' if own.channels == 3 else 'grey'}")
        else:
            lines.append(
                f"  as it is  shape of a sample: {' x '.join(map(str, own.shape))}; values below 2^{own.scale}"
            )
        counts = dict(zip(own.classes, own.class_counts(own.classes), strict=True))
        rounded = f"rounded down to multiples of {own.least}"
        lines.append(f"  in sums   rows of each class, {rounded}: {', '.join(f'{k} {v}' for k, v in counts.items())}")
        if own.kind == TABLE:
            missing = {each: own.missing(each) for each in (*own.numbers, *own.categories) if own.missing(each)}
            shown = ", ".join(f"{name} {count}" for name, count in missing.items()) or "none"
            lines.append(f"  in sums   missing values, {rounded}: {shown}")
            lines += [f"  in sums   {text}" for text in describe_sums(own)]
            if own.silent:
                lines.append(f"  not told: {', '.join(own.silent)} (too few values)")
            lines += [
                f"  not told, and missing for the others unless this is settled: {text}"
                for text in own.unusable.values()
            ]
        else:
            lines.append("  in sums   mean and mean square of the values, by channel")
        lines.append(
            f"Sums are over all {len(self.kit.agreement.members)} members; the organiser sees nothing else of them."
        )
        return lines

    def approve(self, yes: bool, ask: Callable[[str], bool] = ask_person) -> None:
        """Refuse to report unless a person here has agreed."""
        agreement = self.kit.agreement
        if not yes and not ask(f"Report this to the organiser of {agreement.name} at {agreement.address}?"):
            raise SettingError(
                "Nothing was sent: nobody here has approved the report above; read it, and join with --yes (or say yes "
                "at a terminal)."
            )

    # -- answering -----------------------------------------------------------------------------------------------------
    def open(self) -> Node:
        """The node, ready to join."""
        folder, kit = self.folder, self.kit
        with explain_os_errors(kit, folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.lock = self.lock or lock_node_folder(folder)
            report_faults(folder, self.notify)
            approve(kit.agreement, folder, self.policy_for_draft(), self.notify)
            kit.install(folder)
        self.audit.add("joined", federation=kit.agreement.name, node=kit.name, settings=settings_digest(kit.agreement))
        config = NodeConfig(kit.agreement.address, folder / "ca.pem", folder / "node.key", folder, kit.name)
        self.masker = self.make_masker()
        return Node(config, self.handle, self.notify, self.log_error)

    def policy_for_draft(self) -> str | None:
        """What is asked of the draft: once it is approved, a digest is about what the survey makes of it."""
        policy, before = self.limits.approve, approved_terms(self.folder)
        known = before is not None and not changes(before, terms_of(self.kit.agreement))
        return None if known and policy not in POLICIES else policy

    def make_masker(self) -> Masker:
        """The node's keys for sums."""
        made = Masker(self.folder, self.notify, self.limits.peers)
        self.notify(
            f"This node's key for secure aggregation: {fingerprint(made.public)}. Compare it by telephone (--peers)."
        )
        return made

    def handle(self, payload: bytes) -> bytes:
        """Answer a question of the survey, or what a member is asked once there is an agreement."""
        if not is_survey(payload):
            if self.handler is None:
                raise ProtocolError("This node waits for the survey's agreement: fedframe federation survey FOLDER.")
            return self.handler(payload)
        request = SurveyRequest.from_bytes(payload)
        try:
            return self.settle(request) if request.stage == AGREEMENT else self.answer(request)
        except FedframeError as error:
            text = str(error) if isinstance(error, ProtocolError) else public_text(error)
            self.notify(f"The survey was not answered ({request.stage}): {error}")
            self.audit.add("survey refused", survey=request.survey, stage=request.stage, text=str(error)[:500])
            return self.logged(request, {"refused": text[:500]})

    def logged(self, request: SurveyRequest, said: Mapping[str, Any]) -> bytes:
        """An answer that is no statistic, taken down before it leaves."""
        content = encode_answer(request, said)
        add_to_log(
            self.folder / OUTGOING_LOG,
            [f"survey {request.stage}: {json.dumps(dict(said))}", f"message of {len(content):,} bytes"],
        )
        self.audit.add("survey left", stage=request.stage, said=dict(said), **message_of(content))
        return content

    def answer(self, request: SurveyRequest) -> bytes:
        """Answer a stage: the same question gets the same answer, and another one none."""
        kept = self.folder / FOLDER / f"{request.survey}-{request.stage}"
        if kept.with_suffix(".json").exists():
            if read_json(kept.with_suffix(".json"))["question"] != request.digest:
                raise ProtocolError(
                    "This survey was answered here for another question, and from both more could be read than from "
                    "one; begin a new survey (--new)."
                )
            content = kept.with_suffix(".bin").read_bytes()
            self.audit.add("survey left", stage=request.stage, again=True, **message_of(content))
            return content
        self.check_survey(request.survey)
        content, said = self.make_answer(request)
        write_durably(kept.with_suffix(".bin"), content)
        write_durably(kept.with_suffix(".json"), json_bytes({"question": request.digest, "said": said}))
        self.log_answer(request, content, said)
        return content

    def check_survey(self, survey: str) -> None:
        """One approval is for one survey."""
        known = {path.name.partition("-")[0] for path in (self.folder / FOLDER).glob("*-*.json")}
        if self.member is not None:
            raise ProtocolError("This node has an agreement already; a survey comes before it.")
        if self.survey is None or self.survey == survey or (survey in known):
            self.survey = self.survey or survey
            return
        raise ProtocolError(
            "The people at this node have approved one survey, and it was answered; for another one they join again."
        )

    def make_answer(self, request: SurveyRequest) -> tuple[bytes, dict[str, Any]]:
        """The answer, and what it says of these data."""
        number, masker = self.kit.number, self.masker
        assert masker is not None
        if request.stage == FORM:
            body = {**self.own.form(), "key": masker.public}
            return encode_answer(request, body), body
        if request.stage not in (MEANS, SPREADS):
            raise ProtocolError(f"Nobody here knows the stage {request.stage[:40]!r} of a survey.")
        plan = SurveyPlan.from_json(request.body.get("plan"))
        plan.check(self.own)
        around = read_around(request, plan) if request.stage == SPREADS else []
        if request.stage == SPREADS:
            self.check_same_plan(request, plan)
        group = read_group(request, len(self.kit.agreement.members))
        members = self.kit.agreement.members
        masker.check_keys(group, {number}, lambda client: members[client])
        values = contributions(self.own, plan, request.stage, around)
        said = dict(zip(names_of(plan, request.stage), values, strict=True))
        if request.stage == MEANS:
            said["plan"] = request.body["plan"]
        return encode_answer(request, {}, number, mask(values, number, group, masker)), said

    def check_same_plan(self, request: SurveyRequest, plan: SurveyPlan) -> None:
        """Variances are of what means were taken of."""
        path = self.folder / FOLDER / f"{request.survey}-{MEANS}.json"
        if not path.exists() or read_json(path)["said"].get("plan") != plan.to_json():
            raise ProtocolError("Variances are asked for something else than the means before.")

    def settle(self, request: SurveyRequest) -> bytes:
        """Check the data against the agreement that the survey has made, and take part from now on."""
        text = request.body.get("agreement")
        if not isinstance(text, str):
            raise ProtocolError("The survey's agreement cannot be read.")
        new = Agreement.read(text, "the survey's agreement")
        if self.member is not None and self.member.kit.agreement.text() == new.text():
            return self.logged(request, {"approved": settings_digest(new)})
        old = self.kit.agreement
        self.check_survey(request.survey)
        if (new.name, new.members, new.address) != (old.name, old.members, old.address) or new.is_draft:
            raise ProtocolError("The survey's agreement has another name, other members or another address.")
        kit = replace(self.kit, agreement=new)
        left_out = [name for name in self.own.unusable if name in inputs_of(new)]
        write_durably(self.folder / FOLDER / LEFT_OUT, json_bytes({"columns": left_out}))
        limits = replace(self.limits, allowed=settled_terms(old, new))
        member = Membership(
            kit, without_columns(self.data, self.folder), self.folder, label=self.label, limits=limits, **self.options
        )
        for line in (*member.check(), *member.describe_outgoing()):
            self.notify(line)
        approve(new, self.folder, limits.approve, self.notify, allowed=limits.allowed)
        kit.install(self.folder)
        member.lock, self.kit = self.lock, kit
        self.handler = member.request_handler(self.notify)
        self.member = member
        digest = settings_digest(new)
        self.audit.add("survey agreed", survey=request.survey, federation=new.name, settings=digest)
        self.notify(f"The survey's agreement is this node's now (digest of its settings: {digest}); waiting for work.")
        return self.logged(request, {"approved": digest})

    # -- what is taken down --------------------------------------------------------------------------------------------
    def log_answer(self, request: SurveyRequest, content: bytes, said: Mapping[str, Any]) -> None:
        """Take down what leaves, before it does."""
        summed = request.stage != FORM
        how = "in a sum over all members" if summed else "as it is"
        add_to_log(self.folder / OUTGOING_LOG, [f"survey {request.stage}, {how}: {json.dumps(dict(said))}"])
        add_to_log(self.folder / OUTGOING_LOG, [f"message of {len(content):,} bytes"])
        plain = {} if summed else {"said": json.loads(json.dumps(dict(said)))}
        self.audit.add("survey left", stage=request.stage, **{**message_of(content), **plain})
        self.notify(f"survey: {request.stage} answered, {len(content):,} bytes ({how}).")

    def log_error(self, text: str) -> None:
        """Take down what the organiser learns of an error."""
        if self.member is not None:
            self.member.log_error(text)
            return
        with contextlib.suppress(RunError):
            self.audit.add("error told", text=" ".join(text.split())[:500], bytes=len(text.encode()))


def settled_terms(draft: Agreement, new: Agreement) -> tuple[str, ...]:
    """What a survey's agreement may have other than its draft: the form of data, and what follows from that alone.

    A net that was left open, or a rate per class, follows; this node works it out for itself.
    """
    check_named(draft.settings.method, draft.settings.model)
    follows = check_federation(draft.settings, new.form, draft.members) == new.settings
    return tuple(terms_of(new)) if follows else (DATA,)


def inputs_of(agreement: Agreement) -> set[str]:
    """The columns of a table that an agreement takes inputs from."""
    columns = agreement.form.columns or ()
    return {*columns, *(name.rpartition("=")[0] for name in columns)}


def without_columns(data: str, folder: Path) -> str:
    """The data without columns that cannot be read as agreed here; they count as missing."""
    path = folder / FOLDER / LEFT_OUT
    columns = read_json(path)["columns"] if path.exists() else []
    if not columns or not data.startswith(("csv:", "parquet:")):
        return data
    from urllib.parse import parse_qsl, urlencode

    where, _, query = data.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    settled = {name for key in ("numeric", "categorical", "date") for name in options.get(key, "").split(",")}
    dropped = [name for name in columns if name not in {text.partition(":")[0].strip() for text in settled}]
    if dropped:
        options["drop"] = ",".join(dict.fromkeys([*filter(None, options.get("drop", "").split(",")), *dropped]))
    return f"{where}?{urlencode(options)}" if options else where


def read_around(request: SurveyRequest, plan: SurveyPlan) -> list[tuple[float, float]]:
    """Means and deviations of a request."""
    found = request.body.get("around")
    count = plan.channels if plan.shape else len(plan.numbers)
    try:
        around = [(float(centre), float(width)) for centre, width in found or ()]
    except (TypeError, ValueError) as error:
        raise ProtocolError("The survey's means cannot be read.") from error
    if len(around) != count or not all(np.isfinite(each).all() and each[1] > 0 for each in around):
        raise ProtocolError("The survey's means cannot be read.")
    return around


def describe_columns(own: OwnData) -> list[str]:
    """The reported columns, each with what is reported about it."""
    lines = [
        f"column {name}: numbers below 2^{each.scale}"
        + (f", whole numbers that many rows have: {', '.join(each.codes)}" if each.codes else "")
        for name, each in own.numbers.items()
    ]
    lines += [f"column {name}: texts that many rows have: {', '.join(e.names)}" for name, e in own.categories.items()]
    lines += [f"column {name}: that it cannot be used yet" for name in own.unusable]
    return lines


def describe_sums(own: OwnData) -> list[str]:
    """What columns of a table add to sums."""
    lines = []
    for name, each in own.categories.items():
        counts = zip(each.names, own.category_counts(name, each.names), strict=True)
        lines.append(f"rows with each {name}: {', '.join(f'{value} {count}' for value, count in counts)}")
    for name in own.numbers:
        values = own.present(name)
        lines.append(
            f"{name}: {len(values)} values with mean {values.mean():.4g} and deviation {values.std():.4g} (sums of "
            f"them and of squares), and a histogram of {CELLS} cells that are empty or of at least {own.least} rows"
        )
    ends = f"the {own.least} smallest and the {own.least} largest of a column are replaced by the innermost of them"
    return [*lines, f"in all of these, {ends}"] if own.numbers else lines


def public_text(error: FedframeError) -> str:
    """What the organiser learns of data that do not fit: the sentence may hold values, so it stays here."""
    what = "its data do not fit the agreement" if isinstance(error, DataError) else "its people have not approved that"
    return f"{what}; its own log says why"
