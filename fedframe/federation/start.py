"""`fedframe federation start`: the training of a federation, as any run, with the nodes as its clients."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedframe.core.imbalance import tells_counts, told_metric
from fedframe.core.job import Job
from fedframe.core.message import Message, Number
from fedframe.errors import RunError, SettingError, nearest
from fedframe.federation.agreement import Agreement
from fedframe.federation.approval import settings_digest
from fedframe.federation.audited import AuditedTransport
from fedframe.federation.folder import OUTCOME, FederationFolder
from fedframe.federation.serve import connect_superlink
from fedframe.jobs.build import JobMaker
from fedframe.methods.recipes import make_method
from fedframe.network.compatibility import check_claimed_samples, price_of_smaller_sums
from fedframe.network.engine import NetworkEngine, check_hello, masking_keys
from fedframe.network.flower.superlink_client import ServerTask, SuperLinkClient
from fedframe.network.flower.transport import FlowerTransport
from fedframe.network.node import members_digest, template_digest
from fedframe.network.node_data import federation_without_data
from fedframe.network.node_request import HELLO
from fedframe.network.transport import Transport
from fedframe.runs.federated import NOTES, start_command
from fedframe.runs.folder import RunFolder
from fedframe.runs.organiser import ABSENT, COUNTS, nodes_federation
from fedframe.runs.progress import Display, choose_display
from fedframe.runs.result import RunResult
from fedframe.runs.session import execute, sanitize_log_line
from fedframe.util.allowed_code import check_named
from fedframe.util.files import read_json, write_json
from fedframe.util.locate import resolve_paths

MAX_SAMPLES = 10**9  # of one member: more is a mistake, or meant to outweigh everybody


class SuperLinkTransport(FlowerTransport):
    """Flower's transport over a run of the organiser's SuperLink."""

    def __init__(self, superlink: SuperLinkClient) -> None:
        self.superlink = superlink
        self.task: ServerTask = superlink.open_run()
        super().__init__(self.task.grid)

    def close(self) -> None:
        """End the run at the SuperLink."""
        self.task.close()
        self.superlink.close()


def start(
    folder: FederationFolder,
    *,
    new: bool = False,
    test_data: str | None = None,
    without: Sequence[str] = (),
    progress: bool | Display = True,
) -> RunResult:
    """Train, or resume the last training if it was not finished; one that was is not repeated unless `new`.

    `without` are nodes that may come later.
    """
    agreement = folder.agreement()
    check_settled(folder, agreement)
    check_named(agreement.settings.method, agreement.settings.model)
    check_without(agreement, without)
    with folder.exclusive("start", "trains"), choose_display(progress) as display:
        last = last_run(folder) if not new else None
        if last is not None and RunFolder(last).finished:
            display.note(finished_text(folder, last))
            return RunResult(last, RunFolder(last).settings())
        path = last
        if path is not None:
            check_same_members(agreement, path)
        begun: dict[str, Any] = {"run": secrets.token_hex(8), COUNTS: None}
        notes = read_json(path / NOTES) if path is not None else begun
        if test_data is not None:
            if path is not None and notes.get("test_data") != resolve_paths(test_data):
                raise SettingError(
                    f"test_data = {test_data!r}: {path} goes on with the test data that it began with; leave "
                    "--test-data out, or begin a new training with --new."
                )
            notes["test_data"] = resolve_paths(test_data)
        transport = AuditedTransport(SuperLinkTransport(connect_superlink(folder)), folder.audit)

        def notify(text: str) -> None:
            display.note(sanitize_log_line(text))

        try:
            if path is None:
                notes |= {"members": ask_members(agreement, transport, notes["run"], folder, notify, without)}
            job, run = prepare_run(agreement, folder, path, notes)
            if (price := price_of_smaller_sums(agreement.settings, len(agreement.members))) is not None:
                notify(price)
        except BaseException:
            transport.close()
            raise
        resume_command = f"fedframe federation start {shlex.quote(str(folder.path))}"

        def open_engine(job: Job, notify: Callable[[str], None]) -> NetworkEngine:
            metric = told_metric(agreement.settings, job.settings)
            engine = NetworkEngine(job, transport, agreement.members, notes["run"], notify, metric)
            engine.keys = {client: member["key"] for client, member in enumerate(notes["members"]) if "key" in member}
            if path is not None:
                check_members_again(engine)
            if COUNTS in notes and notes[COUNTS] is None:  # a run of an earlier version goes on without
                settle_metric(engine, folder, notes)
            return engine

        folder.audit.add(
            "training begins" if path is None else "training goes on",
            run=notes["run"],
            folder=run.path.name,
            settings=settings_digest(agreement),
        )
        execute(job, run, display, open_engine, resume_command)
        folder.audit.add("training over", run=notes["run"], folder=run.path.name)
    return RunResult(run.path, job.settings)


def settle_metric(engine: NetworkEngine, folder: FederationFolder, notes: dict[str, Any]) -> None:
    """Learn before the first round how frequent the classes are, as far as is agreed, and keep what follows from it."""
    job, known = engine.job, surveyed_counts(folder, engine.job)
    try:
        if tells_counts(job.settings, job.federation):
            engine.count_classes()
        else:
            engine.choose_metric(torch.tensor(known) if known else None)
    except BaseException:
        engine.close()
        raise
    counts, settings = engine.job.federation.told_counts, engine.job.settings
    notes |= {COUNTS: [] if counts is None else counts.tolist()}
    run = RunFolder(job.folder)
    run.write_settings(settings, start_command("../..", notes.get("test_data")))
    write_json(job.folder / NOTES, notes)
    if job.target is None and job.settings.metric == "auto" and not job.settings.score_bins and not known:
        engine.notify(
            "With score_bins = 0 nodes do not tell how frequent their classes are; scores are accuracy, which says "
            "little where one class is nearly all. Another one is agreed with: federation new ... --metric auroc."
        )


def surveyed_counts(folder: FederationFolder, job: Job) -> list[int]:
    """Rows by class over all members, if a survey has settled the agreement."""
    found = read_json(folder.state / OUTCOME).get("classes", {}) if (folder.state / OUTCOME).exists() else {}
    classes = job.federation.source.classes
    return [int(found[name]) for name in classes] if set(found) == set(classes) else []


def check_members_again(engine: NetworkEngine) -> None:
    """Before a run is resumed, ask the connected members again who they are: a program may have been replaced."""
    job = engine.job
    try:
        replies = engine.hello(job.fewest(job.clients_per_round))
        check_hello(job, replies, template_digest(job))
        for client, key in masking_keys(replies).items():
            if key != engine.keys.get(client):
                raise RunError(
                    f"{job.federation.names[client]} has a different key for secure aggregation than when this "
                    "training began (was its folder deleted?); put that folder back, or begin a new training with "
                    "--new."
                )
    except BaseException:
        engine.close()
        raise


def check_agreements(agreement: Agreement, replies: Mapping[int, Message]) -> None:
    """Refuse nodes that have an agreement with other members, such as that of before a change."""
    own = members_digest(agreement.members)
    for client, reply in replies.items():
        if reply.numbers.get("members", own) != own:
            name = agreement.members[client]
            raise RunError(
                f"{name} has an agreement with other members: hand it the new federation.yaml, and have it run once: "
                f"fedframe federation join {name}-node --agreement federation.yaml --data ..."
            )


def check_settled(folder: FederationFolder, agreement: Agreement) -> None:
    """Refuse to train before a survey has settled what data look like."""
    if agreement.is_draft:
        raise SettingError(
            f"{folder.path} has no agreement on data yet; make it with: fedframe federation survey "
            f"{shlex.quote(str(folder.path))}"
        )


def check_same_members(agreement: Agreement, run: Path) -> None:
    """Refuse to go on with a training that was begun with other members."""
    began = [member["name"] for member in read_json(run / NOTES).get("members", [])]
    if began and began != list(agreement.members):
        raise SettingError(
            f"{run} was begun with {', '.join(began)}, and the members are {', '.join(agreement.members)} now; begin a "
            "new training with --new."
        )


def last_run(folder: FederationFolder) -> Path | None:
    """The last run that was begun, if any."""
    found = sorted(folder.runs.glob("[0-9]*"), key=lambda path: int(path.name)) if folder.runs.is_dir() else []
    return found[-1] if found and (found[-1] / NOTES).exists() else None


def finished_text(folder: FederationFolder, run: Path) -> str:
    """What to do with a training that is over; it is not begun again by accident."""
    quoted = [shlex.quote(str(each)) for each in (run, folder.path)]
    return (
        f"The training in {run} is finished: see it with 'fedframe report {quoted[0]}'. For another one: fedframe "
        f"federation start {quoted[1]} --new"
    )


def ask_members(
    agreement: Agreement,
    transport: Transport,
    run: str,
    folder: FederationFolder,
    notify: Callable[[str], None],
    without: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """How many samples each member has; waits until all have replied but those that may come later."""
    count = len(agreement.members)
    blank = federation_without_data(agreement.form, agreement.members, [1] * count, [0] * count, None)
    job = JobMaker(agreement.settings, blank, None).make(folder.path)
    engine = NetworkEngine(job, transport, agreement.members, run, notify)
    replies = engine.hello(count - len(without), [k for k, name in enumerate(agreement.members) if name not in without])
    check_agreements(agreement, replies)
    check_hello(job, replies, template_digest(job))
    return [
        member_record(name, replies[client].numbers) if name not in without else absent_record(name)
        for client, name in enumerate(agreement.members)
    ]


def check_without(agreement: Agreement, without: Sequence[str]) -> None:
    """Refuse to train without nodes where they could not be added later."""
    for name in without:
        if name not in agreement.members:
            raise SettingError(f"without = {name!r} is no node of this federation; {nearest(name, agreement.members)}")
    if not without:
        return
    settings = agreement.settings
    stage = make_method(settings.method, settings.set).optional_slot("server_stage")
    if stage is None or not stage.from_sums or settings.rounds:
        raise SettingError(
            f"without = {','.join(without)}: {settings.method} trains in rounds, to which nobody can be added later; "
            "leave --without out and wait for all nodes."
        )
    if settings.secure:
        raise SettingError(
            f"without = {','.join(without)}: with secure = true a node that comes later could not be added, because "
            "the sums with it, beside those without it, would show its own; leave --without out and wait for all nodes."
        )
    if settings.privacy_clip is not None:
        raise SettingError(
            f"without = {','.join(without)}: with privacy_clip the model is one private release, to which nobody can "
            "be added later; leave --without out and wait for all nodes."
        )
    if len(agreement.members) - len(without) < 1:
        raise SettingError("without: no node is left to train with; leave one out of the list.")


def absent_record(name: str) -> dict[str, Any]:
    """What is kept of a member that has not come yet."""
    return {"name": name, "train": 0, "test": 0, ABSENT: True}


def member_record(name: str, hello: Mapping[str, Number]) -> dict[str, Any]:
    """What is kept of a member's first reply; numbers of samples that cannot be right are refused."""
    sizes = {key: hello.get(key) for key in ("train", "test")}
    if not all(type(size) is int and 0 <= size <= MAX_SAMPLES for size in sizes.values()):
        raise RunError(f"{name} did not say how many samples it has, from 0 to {MAX_SAMPLES:,} ({HELLO}).")
    if sizes["train"] == 0:
        raise RunError(f"{name} has no training samples; it cannot take part.")
    return {"name": name, **sizes, **{key: hello[key] for key in ("version", "template", "key") if key in hello}}


def prepare_run(
    agreement: Agreement, folder: FederationFolder, path: Path | None, notes: dict[str, Any]
) -> tuple[Job, RunFolder]:
    """The job of a run, and its folder: the given one, or a new one."""
    federation = nodes_federation(agreement.form, notes, agreement.settings)
    maker = JobMaker(agreement.settings, federation, None)
    check_claimed_samples(maker.make(folder.path))
    if path is None:
        number = 1
        while (folder.runs / str(number)).exists():
            number += 1
        folder.runs.mkdir(mode=0o700, exist_ok=True)  # models and scores of every member: readable by its owner only
        run = RunFolder.create(folder.runs / str(number), maker.settings)
        run.write_names(federation.names)
        run.write_settings(maker.settings, start_command("../..", notes.get("test_data")))
        write_json(run.path / NOTES, notes)
    else:
        run = RunFolder.open(path)
        maker.settings = maker.settings.model_copy(update={"metric": run.settings().metric})
    return maker.make(run.path), run
