"""What a node lets itself be asked: work of the agreement, in order, once.

An organiser that may ask as often as it likes, with models and learning rates of its own making, reads data out of
answers that are harmless one by one. So a request must be one that the agreed program sends: its learning rate is the
agreed one, its rounds come in order and are those of the agreement, the first model is the agreed initial one, bit for
bit. Of a round a node answers one training and one scoring of each kind, for one model, for ever: what it has answered
is on the disk before the work begins, and the same request gets the same answer or none.

What a node cannot check is that a later model is what the members' updates make of the last one: it does not know
theirs. It refuses one that is too far away (`step_bound.py`). docs/federation/trust.md says what follows from that.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fedframe.core.client_runtime import ClientRuntime
from fedframe.core.imbalance import CLASSES, METRIC, tells_counts
from fedframe.core.job import Job
from fedframe.core.layout import named_tensors
from fedframe.core.message import LAST, STAGE, Message
from fedframe.core.privacy import local_secret, release_of, withholds_figures
from fedframe.errors import DataError, ProtocolError
from fedframe.network.ledger import EpsilonLedger
from fedframe.network.node_request import AGREE, HELLO, UNMASK, Tasks
from fedframe.network.step_bound import StepBound
from fedframe.util.durable import append_record, read_records

FOLDER = "answers"  # in a node's folder: what it was asked in every run, for ever
IN_ROUNDS, AFTER_ROUNDS = ("train", "client", "own"), ("statistics", "personalise", "measure", "client", "own", "end")
BEFORE = 0  # the round in which nodes are asked how frequent the classes are
SCORES = ("client", "own", "measure")  # kinds that are nothing but counts of the own test data
FREE = (HELLO, AGREE, UNMASK, "end")  # what has rules of its own, or tells nothing
STAGE_TRIES = 4  # models that may come out of the server stage: an organiser that was killed in it does it again


@dataclass(frozen=True)
class Slot:
    """What is answered once: a kind of work in a round, and the request that came for it."""

    kind: str
    round: int
    stage: int
    digest: str
    content: str = ""  # what the request brings: in rounds, one model for all kinds of work

    @property
    def name(self) -> str:
        """As it stands in the journal."""
        return f"{self.kind}-{self.round}" + (f"-{self.stage}" if self.stage else "")


class Journal:
    """What one client was asked in one run: a line per request, and one per answer that must stay the same."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.requests: dict[str, list[str]] = {}  # digests by the name of the slot, in the order in which they came
        self.answers: dict[str, str] = {}  # by the digest of the request
        self.contents: dict[int, str] = {}  # by round
        self.longest: dict[str, float] = {}  # the norms of its own replies' tensors, the longest of each
        self.newest = 0  # the last round of which anything was asked
        try:
            for record in read_records(path):
                if "longest" in record:
                    self.longest |= {str(name): float(size) for name, size in record["longest"].items()}
                elif "answer" in record:
                    self.answers[str(record["digest"])] = str(record["answer"])
                else:
                    self._add(record["slot"], int(record["round"]), record["digest"], record["content"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path} is no journal of a node; put an undamaged copy in its place.") from error

    def admit(self, slot: Slot, most: int) -> int:
        """Enter a request, or refuse it; returns which of its slot it is, from 0."""
        known = self.requests.get(slot.name, [])
        if slot.digest in known:
            return known.index(slot.digest)
        if len(known) >= most:
            raise ProtocolError(
                f"{slot.kind} of round {slot.round} was answered for another request; a node answers one, for ever."
            )
        if slot.round < self.newest:
            raise ProtocolError(
                f"Rounds come in order: this node has answered round {self.newest}, and {slot.kind} of round "
                f"{slot.round} was never asked of it before."
            )
        if slot.content and self.contents.get(slot.round, slot.content) != slot.content:
            raise ProtocolError(f"Round {slot.round} was answered for another model; a round has one, for all work.")
        record = {"slot": slot.name, "round": slot.round, "digest": slot.digest, "content": slot.content}
        append_record(self.path, record)
        self._add(slot.name, slot.round, slot.digest, slot.content)
        return len(known)

    def seal(self, slot: Slot, reply: Message, secret: bytes) -> None:
        """Take down what is answered, before it leaves; another answer to the same request is refused."""
        answer = hashlib.blake2b(reply.to_bytes(), key=secret, digest_size=16).hexdigest()
        if self.answers.get(slot.digest, answer) != answer:
            raise ProtocolError(
                "This request was answered before with other numbers, and from both more could be read than from one; "
                "are the data the same as then? The next round is answered again."
            )
        if slot.digest not in self.answers:
            append_record(self.path, {"digest": slot.digest, "answer": answer})
            self.answers[slot.digest] = answer

    def keep_lengths(self, lengths: Mapping[str, float]) -> None:
        """Take down that own replies were longer than before."""
        if lengths:
            append_record(self.path, {"longest": dict(lengths)})
            self.longest |= lengths

    def _add(self, slot: str, round: int, digest: str, content: str) -> None:
        self.requests.setdefault(slot, []).append(digest)
        if content:
            self.contents[round] = content
        self.newest = max(self.newest, round)


class Admission:
    """The rules of one run at one node."""

    def __init__(self, job: Job, run: str, ledger: EpsilonLedger | None = None, most_runs: int | None = None) -> None:
        self.job, self.run, self.ledger, self.most_runs = job, run, ledger, most_runs
        self.home = job.home or job.folder
        self.journals: dict[int, Journal] = {}
        self.withholds = withholds_figures(job.settings)
        # A part whose statistics after the rounds are private themselves, where there is privacy at all.
        self.release = release_of(job.method) if job.settings.privacy_clip is not None else None
        self.keeps_answers = self.withholds or job.settings.secure
        self.secret = local_secret(self.home)
        self.step_bound = StepBound(job)

    def journal(self, client: int) -> Journal:
        """What a client was asked in this run."""
        if client not in self.journals:
            self.journals[client] = Journal(self.home / FOLDER / self.run / f"{client}.jsonl")
        return self.journals[client]

    def admit(
        self, request: Message, tasks: Tasks, seen: Mapping[int, int], group: str = ""
    ) -> dict[tuple[str, int], tuple[Slot, int]]:
        """Refuse what is not agreed, and take down the rest.

        `group` identifies those who are summed together; `seen` are the rounds that were merged last, which say from
        which private state a client goes on.
        """
        asked = {kind: clients for kind, clients in tasks.items() if kind not in FREE}
        for kind in {*asked, *({"end"} & set(tasks))}:
            self.check(kind, request, tasks)
        if request.numbers.get(LAST) or asked:
            self.check_last(request, tasks)
            self.check_runs()
            self.check_step(request, {client for clients in tasks.values() for client in clients})
        if request.numbers.get(LAST):
            self.admit_last(request, tasks)
        if not asked:
            return {}
        content = request_digest(request, group)
        found = {}
        for kind, clients in asked.items():
            stage = int(request.numbers.get(STAGE, 0)) if kind == "statistics" else 0
            for client in clients:
                state = min(seen.get(client, request.round), request.round - 1)
                digest = hashlib.blake2b(f"{kind} {state} {content}".encode(), digest_size=16).hexdigest()
                pinned = content if request.round <= self.job.settings.rounds else ""
                slot = Slot(kind, request.round, stage, digest, pinned)
                found[kind, client] = slot, self.journal(client).admit(slot, self.most(slot))
                if kind == "train" or (kind == "statistics" and self.release is not None):
                    self.spend(client, request.round)
        self.step_bound.keep(request)
        return found

    def check_step(self, request: Message, clients: Collection[int]) -> None:
        """Refuse a model that has moved too far, as these clients' own updates say.

        One that has not trained yet, because it was away or is said to have been, trains for itself from the agreed
        initial model: nothing of it leaves but the answer, whether it takes the request.
        """
        if self.step_bound.wants(request):
            for client in clients:
                if request.round > 1 and not self.journal(client).longest:  # the first model is the agreed one
                    first = Message("train", 1, -1, self.step_bound.beginning, {"lr": self.job.learning_rate(1)})
                    trial = self.job.folder / f"trial-{client}"  # local nodes share a folder
                    try:
                        self.trained(client, ClientRuntime(replace(self.job, folder=trial)).perform(first, client))
                    finally:
                        shutil.rmtree(trial, ignore_errors=True)
            self.step_bound.check(request, self.longest(clients))

    def longest(self, clients: Collection[int]) -> dict[str, float]:
        """The norms of these clients' own replies, the longest of each tensor."""
        found: dict[str, float] = {}
        for client in clients:
            for name, size in self.journal(client).longest.items():
                found[name] = max(size, found.get(name, 0.0))
        return found

    def trained(self, client: int, reply: Message) -> None:
        """Take down how long a reply to a training is, before it is masked."""
        journal = self.journal(client)
        journal.keep_lengths(self.step_bound.lengths(reply, journal.longest))

    def check_last(self, request: Message, tasks: Tasks) -> None:
        """Refuse a request that says that it is the last, and is not."""
        early = request.round <= self.job.settings.rounds or not tasks or set(tasks) - set(AFTER_ROUNDS)
        if request.numbers.get(LAST) and early:
            raise ProtocolError("The last request of a run comes after its rounds, with work of its own.")

    def admit_last(self, request: Message, tasks: Tasks) -> None:
        """The request that ends a run: nodes keep its model, score it for themselves, and may tell what they gain."""
        slot = Slot("last", request.round, 0, request_digest(request))
        for client in {client for clients in tasks.values() for client in clients}:
            self.journal(client).admit(slot, self.most(slot))

    def check(self, kind: str, request: Message, tasks: Tasks) -> None:
        """Refuse a request that the agreed program does not send."""
        settings, round = self.job.settings, request.round
        usual = IN_ROUNDS if round <= settings.rounds else AFTER_ROUNDS
        if kind not in ((CLASSES,) if round == BEFORE else usual):
            raise ProtocolError(f"{kind} is not asked in round {round} of {settings.rounds}.")
        if kind not in self.agreed_kinds():
            raise ProtocolError(f"{kind} is no work of this agreement.")
        if odd := set(request.numbers) - {"lr", LAST, STAGE, METRIC}:
            raise ProtocolError(f"The request has a number {sorted(odd)[0][:40]!r}, which no request has.")
        agreed = self.job.learning_rate(round) if request.kind == "train" else settings.lr
        if request.numbers.get("lr") != agreed:
            raise ProtocolError(f"The learning rate of round {round} is agreed to be {agreed!r}; use the agreed one.")
        begins = kind == "train" or (kind == "statistics" and not request.numbers.get(STAGE))
        if begins and round == 1:
            agreed_tensors = named_tensors(self.job.template)
            first = self.job.roles.layout.flatten(agreed_tensors)
            fixed = [name for name in request.tensors if name.startswith("fixed/") and kind == "train"]
            if not torch.equal(request.tensors["model"].cpu(), first.cpu()) or not all(
                torch.equal(request.tensors[name].cpu(), agreed_tensors[name[6:]].detach().cpu()) for name in fixed
            ):
                raise ProtocolError("The first model is not the agreed initial one.")

    def agreed_kinds(self) -> Collection[str]:
        """The kinds of work that an organiser asks for under this agreement."""
        settings = self.job.settings
        kinds = {"train", "client", "own", "end"}
        kinds |= {"statistics"} if self.job.stages else set()
        kinds |= {"personalise"} if settings.personal else set()
        kinds |= {"measure"} if settings.score_bins else set()
        kinds |= {CLASSES} if tells_counts(settings, self.job.federation) else set()
        return kinds - set(SCORES) if self.withholds else kinds

    def most(self, slot: Slot) -> int:
        """How many requests of a slot are answered: one, but where the end of a run may be gone through again."""
        method = self.job.method
        if slot.kind == "statistics" and self.release is not None:  # it is in the ledger once
            return 1
        staged = method.optional_slot("server_stage") is not None or bool(method.parts_with("after_rounds"))
        if slot.round <= self.job.settings.rounds or not staged:
            return 1
        if self.job.settings.secure:  # the difference of two sums would be a client's
            return 2 if slot.kind in ("client", "own") else 1  # before the stage and after it
        return STAGE_TRIES

    def check_runs(self) -> None:
        """Refuse one run more than the people at this node want to be in."""
        base = self.home / FOLDER
        if self.most_runs is None or (base / self.run).exists():
            return
        before = sum(path.is_dir() for path in base.iterdir()) if base.exists() else 0
        if before >= self.most_runs:
            raise ProtocolError(
                f"This node takes part in {self.most_runs} runs at most, and has; join with a larger --runs-limit."
            )

    def spend(self, client: int, round: int) -> None:
        """Enter a private update or release into the ledger, or refuse it."""
        settings = self.job.settings
        if self.ledger is not None and settings.privacy_clip is not None:
            # Two federations may give their runs the same name.
            place = hashlib.blake2b(b"ledger", key=self.secret, digest_size=8).hexdigest()
            protects = self.release.protects if self.release is not None else None
            key = f"{place} {self.run} {client} {round}"
            self.ledger.spend(key, settings.privacy_noise, settings.privacy_delta, protects or "clients")

    def seal(self, slot: Slot, client: int, reply: Message) -> Message:
        """The reply, which must be the same whenever the request comes again."""
        if self.keeps_answers:
            self.journal(client).seal(slot, reply, self.secret)
        return reply


def request_digest(request: Message, group: str = "") -> str:
    """A text that identifies what a request brings: its tensors, and with whom replies are summed."""
    digest = hashlib.blake2b(group.encode(), digest_size=32)
    digest.update(json.dumps([request.round, request.numbers.get(STAGE, 0)]).encode())
    digest_tensors(digest, request.tensors)
    return digest.hexdigest()


def digest_tensors(digest: hashlib.blake2b, tensors: Mapping[str, torch.Tensor]) -> None:
    """Add named tensors to a digest."""
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
