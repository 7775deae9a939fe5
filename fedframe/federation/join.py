"""`fedframe federation join`: a node takes part with its own data, and prints what leaves it before anything does."""

from __future__ import annotations

import contextlib
import functools
import math
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from filelock import FileLock

from fedframe.core.batches import plain_batches
from fedframe.core.imbalance import IMBALANCED, majority, may_choose, tells_counts
from fedframe.core.job import Job
from fedframe.core.measures import metric_name
from fedframe.core.message import STAGE, Message, Number
from fedframe.core.privacy import withholds_figures
from fedframe.core.server import Server
from fedframe.data.federation import Federation
from fedframe.data.new_client import load_new_client
from fedframe.engines.inline import InlineEngine
from fedframe.errors import DataError, RunError, SettingError
from fedframe.federation.approval import approve, check_policy, settings_digest
from fedframe.federation.audit import LOG, AuditLog, digest_of, verify
from fedframe.federation.audited import message_of, reply_contents
from fedframe.federation.kit import Kit
from fedframe.federation.kit_weights import NodeWeights
from fedframe.federation.node_folder import explain_os_errors, lock_node_folder
from fedframe.federation.own_results import keep_gain, keep_scores, record_replies, reply_numbers_of
from fedframe.jobs.build import JobMaker
from fedframe.jobs.devices import check_device
from fedframe.network.compatibility import price_of_smaller_sums
from fedframe.network.flower.node import Node, NodeConfig
from fedframe.network.ledger import EpsilonLedger
from fedframe.network.node import NodeRuntime, run_folder
from fedframe.network.node_data import as_client_of
from fedframe.network.node_request import HELLO
from fedframe.network.step_bound import unbounded
from fedframe.runs.federated import OWN
from fedframe.runs.folder import RunFolder
from fedframe.runs.predictor import save_model, table_options
from fedframe.settings import Settings
from fedframe.util.allowed_code import check_named
from fedframe.util.files import write_json
from fedframe.util.locate import resolve_paths
from fedframe.util.text import percent
from fedframe.util.version import __version__

if TYPE_CHECKING:
    from fedframe.network.masker import Masker

WHEN = {"train": "each round", "statistics": "at the end"}
OUTGOING_LOG = "leaves.log"  # what left this node, answer by answer
LEDGER = "epsilon.jsonl"  # what private runs have spent, in the node's folder unless --ledger says otherwise
DEFAULT_TEST_SHARE = 0.25
DEFAULT_RUNS = 100  # in which a node takes part
PEER_CODE = re.compile("[0-9A-F]{4}(-[0-9A-F]{4}){5}")


@dataclass(frozen=True)
class Limits:
    """What the people at a node have decided for themselves, whatever the organiser asks."""

    epsilon: float | None = None  # of all runs together
    ledger: Path | None = None  # where these are written down; none: in the node's folder
    runs: int = DEFAULT_RUNS
    peers: Mapping[str, str] = field(default_factory=dict)  # codes of the others' keys, as they have read them out
    approve: str | None = None  # ask, any or a digest: see `approval.py`
    allowed: tuple[str, ...] = ()  # terms that may change without a question

    def check(self, kit: Kit) -> None:
        """Refuse limits that could not hold."""
        settings = kit.agreement.settings
        check_policy(self.approve)
        if self.epsilon is not None and not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise SettingError(f"epsilon_limit = {self.epsilon:g}: must be a number above 0, such as 8.")
        if self.epsilon is not None and settings.privacy_clip is None:
            raise SettingError(
                "epsilon_limit: this agreement has no privacy_noise, so that no epsilon bounds what a run reveals; "
                "leave --epsilon-limit out, or agree on --privacy-clip 1 --privacy-noise 1 --privacy-at node."
            )
        if self.runs < 1:
            raise SettingError(f"runs_limit = {self.runs}: must be 1 or more.")
        for name in self.peers:
            if name not in kit.agreement.members or name == kit.name:
                raise SettingError(f"peers: {name[:40]!r} is no other member; use {name_example(kit)}=CODE.")
        if self.peers and not settings.secure:
            raise SettingError("peers: codes are of keys for secure aggregation, which is not agreed; leave it out.")


def name_example(kit: Kit) -> str:
    """The name of another member."""
    return next(name for name in kit.agreement.members if name != kit.name)


def read_peers(text: str) -> dict[str, str]:
    """Codes by member, as they are typed: south=AB12-...,west=CD34-..."""
    found = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, code = item.partition("=")
        if not equals or not PEER_CODE.fullmatch(code.strip().upper()):
            raise SettingError(
                f"peers: {item[:60]!r} is no member with its code; write south=AB12-CD34-... as it was read out."
            )
        found[name.strip()] = code.strip().upper()
    return found


class Membership:
    """A node's kit, data and folder."""

    def __init__(
        self,
        kit: Kit,
        data: str,
        folder: Path,
        test_share: float | None = None,
        label: str | None = None,
        device: str = "cpu",
        tell_gain: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self.kit, self.folder, self.tell_gain, self.limits = kit, folder, tell_gain, limits or Limits()
        self.asked = {"data": resolve_paths(data), "test_share": test_share, "label": label, "device": device}
        self.limits.check(kit)
        agreement = kit.agreement
        if agreement.is_draft:
            raise SettingError(
                f"{agreement.name} has no agreement on data yet: its organiser makes one by a survey; join without "
                "--check to answer it."
            )
        self.weights = NodeWeights(kit.weights, folder, agreement.settings)
        own = {"device": device, "weights": self.weights.path}  # each node has its own
        self.settings: Settings = agreement.settings.model_copy(update=own)
        check_device(device)  # before data are loaded for nothing
        usual = self.settings.local_test
        federation = load_new_client(
            data,
            agreement.form,
            share=test_share,
            default_share=DEFAULT_TEST_SHARE if usual == "global" else float(usual),
            seed=self.settings.seed,
            label=label or self.settings.label,
            drop_unknown=agreement.surveyed is not None,
        )
        self.alone = federation  # the same data as a federation of this node only
        self.federation: Federation = as_client_of(federation, kit.number, agreement.members)
        check_named(self.settings.method, self.settings.model)
        self.maker = JobMaker(self.settings, self.federation, None)
        self.done = False

    def use_installed_weights(self) -> None:
        """Read the initial weights from the node's folder from now on."""
        path = {"weights": self.weights.installed()}
        self.settings = self.settings.model_copy(update=path)
        self.maker.settings = self.maker.settings.model_copy(update=path)

    # -- before anything leaves ----------------------------------------------------------------------------------------
    def check(self) -> list[str]:
        """Try the data with the net; returns sentences on what was found."""
        job, client = self.maker.make(self.folder), self.kit.number
        rows = job.federation.train[client]
        source = job.federation.source
        if len(rows) == 0:
            raise DataError("There are no training samples; give more data, or a smaller test_share.")
        inputs = next(plain_batches(source, source.train, rows[: self.settings.batch], self.settings.batch))
        with torch.no_grad():
            logits = job.method.logits(job.fresh_model().eval(), inputs)
        if not bool(torch.isfinite(logits).all()):
            raise DataError("The net gives NaN or infinite values on these data; are they in the agreed units?")
        counts = job.federation.class_counts(client).tolist()
        held = ", ".join(f"{name} {n}" for name, n in zip(source.classes, counts, strict=True) if n)
        held = held if source.target is None else f"{source.task} of {', '.join(source.outputs)}"
        return [
            f"{len(rows):,} training and {len(job.federation.local_test[client]):,} test samples of shape "
            f"{' x '.join(map(str, source.train.x.shape))}: {held}.",
            f"A batch of {len(inputs)} went through {self.settings.model}: the data fit.",
            *self.describe_imbalance(),
            *job.federation.notes,
        ]

    def describe_imbalance(self) -> list[str]:
        """What accuracy hides at this node, where one class has nearly all of its test data."""
        name, share = majority(self.federation)
        if share <= IMBALANCED:
            return []
        said = f"{percent(share)} of this node's test samples are {name!r}: the majority class alone would score "
        said += f"{percent(share)} in accuracy."
        if may_choose(self.settings.metric, self.federation):
            said += " Scores are balanced accuracy if the same holds over all nodes, as far as that may be known."
        return [said]

    def describe_outgoing(self) -> list[str]:
        """Names, shapes and sizes of all that leaves this node: those of replies that it makes for a test."""
        with tempfile.TemporaryDirectory() as folder:
            job = JobMaker(self.settings.model_copy(update={"steps": 1}), self.federation, None).make(Path(folder))
            engine = InlineEngine(job)
            server = Server(job, engine, lambda text: None)
            requests = [server.build_request("train", 1)] if job.settings.rounds else []
            if job.expected("statistics"):
                asked = server.build_request("statistics", 2)
                requests += [replace(asked, numbers={**asked.numbers, STAGE: each}) for each in range(job.stages)]
            replies = [next(iter(engine.run(request, [self.kit.number]))) for request in requests]
            engine.close()
        lines = ["What leaves this node: names, shapes and numbers; no sample, and no sample's label."]
        noised = withholds_figures(self.settings)
        once = "the versions of Fedframe and torch, digests of the net and of the list of members"
        once = once if noised else f"the numbers of training and test samples, {once}"
        lines.append(f"  once        {once}{', public keys' if self.settings.secure else ''}")
        if tells_counts(self.settings, self.federation):
            hidden = ", which only the sum over clients shows" if self.settings.secure else ""
            lines.append(f"  once        how many of this node's test samples each class has{hidden}")
        for reply in replies:
            lines += [f"  {WHEN[reply.kind]}  {text}" for text in self.describe_reply(reply)]
        if noised:
            lines.append("  No loss, no number of samples and no score: these have no noise.")
        else:
            lines += self.describe_scores(job)
            if self.tell_gain:
                lines.append(
                    "  at the end  what this node has alone and gains by joining: two scores, intervals (--tell-gain)"
                )
        if (price := price_of_smaller_sums(self.settings, len(self.kit.agreement.members))) is not None:
            lines.append(price)
        loose = unbounded(job.method, job) if self.settings.step_bound else ["an organiser (step_bound = 0)"]
        if self.settings.rounds and loose:
            lines.append(
                f"This node cannot tell how far {', '.join(loose)} may move the shared model between rounds: it takes "
                "whatever is sent in its place."
            )
        if job.remembers:
            lines.append("What stays here between rounds: this client's private state, and at the end its own model.")
        return lines

    def describe_scores(self, job: Job) -> list[str]:
        """What tells the organiser how good the models are on this node's test data."""
        counted = "samples" if job.target is not None else "right predictions and samples"
        error = "" if self.settings.secure else " with its standard error"
        metric, scored = self.settings.score_metric, ""
        if may_choose(self.settings.metric, self.federation):
            scored = f", and balanced accuracy{error} if the organiser's scores are that"
        elif metric != "accuracy":
            scored = f", and {metric_name(metric)}{error}"
        summed = ", which only the sum over clients shows" if self.settings.secure else ""
        bins = self.settings.score_bins
        histograms = f", and histograms of the scores of both models there in {bins:,} bins{summed}" if bins else ""
        return [
            f"  each round  {counted} of this node's test data{scored}{summed}",
            f"  at the end  the same of this node's own model{histograms}",
        ]

    def describe_reply(self, reply: Message) -> list[str]:
        """What a reply holds, or what is sent in its place."""
        if self.settings.secure:
            from fedframe.network.secure_aggregation import vector_size

            size = torch.Size([vector_size({name: tensor.shape for name, tensor in reply.tensors.items()})])
            names = ", ".join([*reply.tensors, *([] if withholds_figures(self.settings) else ["loss"])])
            names += " and whether the training has diverged"
            return [
                f"{describe_tensor('masked', size, 8)}: {names}, which only the sum over clients shows; the seeds of "
                "the masks, in encrypted shares, and openly once enough members have signed who is left",
                "numbers: none" if withholds_figures(self.settings) else "numbers: samples",
            ]
        tensors = [describe_tensor(name, t.shape, t.element_size()) for name, t in reply.tensors.items()]
        numbers = [] if withholds_figures(self.settings) else list(reply.numbers)
        return [*tensors, f"numbers: {', '.join(numbers) or 'none'}"]

    # -- taking part ---------------------------------------------------------------------------------------------------
    lock: FileLock | None = None  # held while this process takes part: see `make_node`

    def request_handler(self, notify: Callable[[str], None]) -> Callable[[bytes], bytes]:
        """A function that answers requests and keeps a log of what leaves."""
        made = (
            self.masker(notify) if self.settings.secure else None
        )  # now: keys are compared before the training begins
        masker = (lambda: made) if made is not None else None
        ledger = self.ledger()
        delta = self.settings.privacy_delta
        if ledger is not None:
            notify(ledger.describe(delta))
        afterwards: list[str] = []  # what is printed after the line on the last request
        runtime = NodeRuntime(
            self.make_job,
            [self.kit.number],
            lambda job, request: self.finish(job, request, afterwards.append),
            masker,
            ledger,
            self.limits.runs,
        )

        def handle(payload: bytes) -> bytes:
            began = time.monotonic()
            node_request, replies, content = runtime.handle(payload)
            self.log_replies(replies, len(content))
            self.audit.add(
                "left",
                **{**message_of(content), "kinds": list(node_request.tasks)},
                request=digest_of(payload),
                parts=reply_contents(replies),
            )
            if runtime.client_runtime is not None:
                self.note_metric(runtime.client_runtime.job, notify)
                record_replies(runtime.client_runtime.job, replies, len(payload), len(content))
            if set(node_request.tasks) != {HELLO}:
                took = f"{', '.join(node_request.tasks)} in {time.monotonic() - began:.1f} s"
                round = node_request.request.round
                when = f"round {round}" if round <= self.settings.rounds else "the end"
                spent = f", epsilon {ledger.spent(delta):.3g}" if ledger is not None else ""
                notify(f"{when}: {took}, {len(content):,} bytes back{spent}")
            while afterwards:
                notify(afterwards.pop(0))
            return content

        return handle

    def note_metric(self, job: Job, notify: Callable[[str], None]) -> None:
        """Keep the metric that the organiser has named, so that this node's own report shows the same."""
        folder, metric = RunFolder(job.folder), job.settings.metric
        if metric != self.settings.metric and folder.settings().metric != metric:
            folder.write_settings(job.settings)
            notify(
                f"Scores of this run are {metric_name(metric)}: over all nodes, one class has more than "
                f"{100 * IMBALANCED:.0f} % of the test samples."
            )

    def ledger(self) -> EpsilonLedger | None:
        """What private runs have spent; none where the agreement has no privacy."""
        if self.settings.privacy_clip is None:
            return None
        return EpsilonLedger((self.limits.ledger or self.folder / LEDGER).absolute(), self.limits.epsilon)

    def masker(self, notify: Callable[[str], None]) -> Masker:
        """This node's key for secure aggregation; it is made here and never leaves."""
        from fedframe.network.masker import Masker
        from fedframe.network.masks import fingerprint

        made = Masker(self.folder, notify, self.limits.peers)
        code = fingerprint(made.public)
        notify(
            f"This node's key for secure aggregation: {code}. Read it to the other members, and join with theirs "
            "(--peers)."
        )
        return made

    def make_job(self, run: str) -> Job:
        """The job of a run; its folder can be used like any run's once the run is over."""
        path = run_folder(self.folder, run)
        path.mkdir(parents=True, exist_ok=True)
        folder = RunFolder(path)
        folder.write_names(self.federation.names)
        write_json(path / OWN, {"node": self.kit.name, **self.asked})
        folder.write_settings(self.maker.settings)
        return self.maker.make(path, self.folder)

    def finish(self, job: Job, request: Message, notify: Callable[[str], None]) -> dict[str, Number]:
        """Save the shared model beside this client's own, as the run is over; returns the gain as the reply says it."""
        fixed = {name[6:]: tensor for name, tensor in request.tensors.items() if name.startswith("fixed/")}
        save_model(job.folder, job, request.tensors["model"], fixed, table_options(str(self.asked["data"])))
        row = keep_gain(self, job, keep_scores(self, job, request))
        self.done = True
        own = f" --client {self.kit.name}" if self.settings.personal else ""
        notify(f"The run is over. Predict with: fedframe predict {job.folder} INPUT{own}")
        notify(f"This node's own scores: fedframe report {job.folder}; what it gains: fedframe gain {job.folder}")
        return reply_numbers_of(row) if self.tell_gain else {}

    def log_replies(self, replies: Sequence[Message], size: int) -> None:
        """Log what leaves, before it does."""
        lines = []
        for reply in replies:
            tensors = ", ".join(log_tensor(name, tensor) for name, tensor in reply.tensors.items())
            numbers = ", ".join(f"{name}={value}" for name, value in reply.numbers.items())
            lines.append(f"round {reply.round} {reply.kind}: {tensors or 'no tensors'}; {numbers}")
        self.log_lines([*lines, f"message of {size:,} bytes"])

    def log_error(self, text: str) -> None:
        """Log what the organiser learns of an error."""
        self.log_lines([f"error: {' '.join(text.split())}"])
        with contextlib.suppress(RunError):  # on a full disk the organiser should learn at least that it is full
            self.audit.add("error told", text=" ".join(text.split())[:500], bytes=len(text.encode()))

    @functools.cached_property
    def audit(self) -> AuditLog:
        """What left, line by line, each with the hash of the one before."""
        return AuditLog(self.folder)

    def log_lines(self, lines: Sequence[str]) -> None:
        """Add lines to the log of what leaves."""
        add_to_log(self.folder / OUTGOING_LOG, lines)


def add_to_log(path: Path, lines: Sequence[str]) -> None:
    """Add lines to a log for people, each with the time."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    with path.open("a") as file:
        file.writelines(f"{stamp} {line}\n" for line in lines)


def describe_tensor(name: str, shape: torch.Size, width: int) -> str:
    """A tensor's name, shape and size, for people."""
    return f"{name}: {' x '.join(map(str, shape)) or 'one'} numbers, {width * shape.numel():,} bytes"


def log_tensor(name: str, tensor: torch.Tensor) -> str:
    """A tensor in the log of what leaves: its form, and its value if it has but one."""
    value = f" = {tensor.item()}" if tensor.numel() == 1 else ""
    return f"{name} {str(tensor.dtype)[6:]} {tuple(tensor.shape)}{value}"


def report_faults(folder: Path, notify: Callable[[str], None]) -> None:
    """Say at the start that the audit log is not as it was written; taking part goes on, and so does the log."""
    if (folder / LOG).exists() and (faults := verify(folder).faults):
        notify(
            f"The audit log of this node is not as it was written: {'; '.join(faults[:3])} (fedframe federation audit)."
        )


def make_node(member: Membership, notify: Callable[[str], None]) -> Node:
    """The node, ready to join; its kit is kept in its folder, which no other process may use meanwhile."""
    folder, kit = member.folder, member.kit
    with explain_os_errors(kit, folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        member.lock = member.lock or lock_node_folder(folder)  # first: another kit must not replace a running node's
        report_faults(folder, notify)
        approve(kit.agreement, folder, member.limits.approve, notify, allowed=member.limits.allowed)
        kit.install(folder)
        member.use_installed_weights()
        member.audit.add(
            "joined",
            federation=kit.agreement.name,
            node=kit.name,
            version=kit.agreement.version,
            settings=settings_digest(kit.agreement),
            program=__version__,
        )
    config = NodeConfig(kit.agreement.address, folder / "ca.pem", folder / "node.key", folder, kit.name)
    return Node(config, member.request_handler(notify), notify, member.log_error)
