"""Clients at nodes of a network: one message per node and request, replies in the order of the units.

A `Transport` carries the messages. Whatever happens on the way (a node that is gone, slow or raises, an answer that
cannot be decoded) ends as a `lost` reply with its reason. With fewer usable replies than `min_clients` the engine says
so, waits and asks again; a client that is asked twice gives the same reply, so nothing is counted twice.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fedframe.core.client_runtime import ClientRuntime
from fedframe.core.engine import Engine
from fedframe.core.imbalance import CLASSES, choose_metric, told_metric
from fedframe.core.job import Job
from fedframe.core.message import LOST, Message, Number, has_numbers, validate_reply
from fedframe.core.privacy import withholds_figures
from fedframe.core.remote_evaluation import RemoteEvaluation
from fedframe.core.target_measures import evidence_size
from fedframe.errors import DataError, DivergedError, RunError
from fedframe.network.node import upload_digest, versions
from fedframe.network.node_request import AGREE, HELLO, UNMASK, NodeRequest, RequestNumbers, decode_replies
from fedframe.network.transport import PendingRequest, Transport

if TYPE_CHECKING:
    from fedframe.network.masks import MaskingGroup

POLL_INTERVAL = 0.25  # seconds between two looks for replies
RETRY_INTERVAL = 5.0  # seconds between two attempts to reach enough clients
REMINDER_INTERVAL = 60.0  # seconds between two sentences that say what is awaited
NO_REPLY = "its node's answer leaves it out"
MAX_REASON_LENGTH = 200  # characters of each, where the reasons of all nodes stand in one sentence
COUNT_SLACK = 1e-6  # sums under masks are rounded
REPLY_SIZE_FACTOR = 4  # a reply is at most so many times what is expected of the largest client's, plus a little


class NetworkEngine(Engine):
    """Has requests performed by nodes; only the server's own test data are used here."""

    def __init__(
        self, job: Job, transport: Transport, node_of_client: Sequence[str], run: str, notify: Callable[[str], None],
        metric: Mapping[str, Number] | None = None,
    ) -> None:  # fmt: skip
        self.job, self.transport, self.run_name, self.notify = job, transport, run, notify
        self.node_of_client = tuple(node_of_client)
        self.metric = metric or {}  # what every request tells of it: see `told_metric`
        self.numbers = RequestNumbers(job.folder)
        # The last round in which a client's reply was merged.
        self.seen = torch.zeros(len(node_of_client), dtype=torch.int64)
        self.keys: dict[int, str] = {}  # clients' public keys, for secure aggregation
        self.summed: list[int] = []
        self.masked_shapes: dict[str, torch.Size] = {}  # names and shapes of what is summed under masks at present
        self.expected: dict[str, dict[str, torch.Size]] = {}  # names and shapes of replies; the server fills it
        self.durations: list[float] = []  # seconds that each request took
        self._piggybacked: dict[str, list[int]] = {}
        self._piggyback_replies: dict[str, list[Message]] = {}
        self._runtime: ClientRuntime | None = None
        self._last_reminder = (0.0, "")
        self.evaluation = RemoteEvaluation(self)

    # -- what the server asks ------------------------------------------------------------------------------------------
    def run(self, request: Message, units: Sequence[int]) -> Iterator[Message]:
        """Have the request performed for every unit, and what was piggybacked on it."""
        if request.kind == "score":
            self._runtime = self._runtime or ClientRuntime(self.job)
            for unit in units:
                yield self._runtime.perform(request, unit)
            return
        if request.kind != CLASSES:
            request = replace(request, numbers={**request.numbers, **self.metric})
        piggybacked, self._piggybacked = self._piggybacked, {}
        self._piggyback_replies = {kind: [] for kind in piggybacked}
        if self.job.settings.secure and (piggybacked or units):
            from fedframe.network.secure_aggregation import run_securely, summed_kinds

            if piggybacked or request.kind in summed_kinds(self.job):
                yield from run_securely(self, request, units, piggybacked)
                return
        wanted = {**piggybacked, **({request.kind: list(units)} if units else {})}
        found, reasons = self.gather_replies(request, wanted, self.job.fewest(len(units)))
        for kind, clients in piggybacked.items():
            for client in clients:
                self._piggyback_replies[kind].append(self.reply_or_lost(request, kind, client, found, reasons))
        for unit in units:
            yield self.reply_or_lost(request, request.kind, unit, found, reasons)

    def reply_or_lost(
        self,
        request: Message,
        kind: str,
        client: int,
        found: Mapping[tuple[str, int], Message],
        reasons: Mapping[str, str],
    ) -> Message:
        """A client's reply, or a message that stands in for it with the reason."""
        reason = reasons.get(self.node_of_client[client], NO_REPLY)
        return found.get((kind, client)) or Message.lost(request, client, reason)

    def add_piggyback_reply(self, reply: Message) -> None:
        """Keep a reply to piggybacked work until it is asked for."""
        self._piggyback_replies.setdefault(reply.kind, []).append(reply)

    def piggyback(self, kind: str, clients: Sequence[int]) -> None:
        """Have these clients do this too with the next request, before it."""
        self._piggybacked[kind] = sorted({*self._piggybacked.get(kind, ()), *clients})

    def awaits(self) -> bool:
        """Whether something was piggybacked that no request has taken along yet."""
        return bool(self._piggybacked)

    def pop_replies(self, kind: str) -> list[Message] | None:
        """What the last request brought back of this piggybacked kind, once."""
        return self._piggyback_replies.pop(kind, None)

    def hello(self, min_clients: int, clients: Sequence[int] | None = None) -> dict[int, Message]:
        """Ask every client, or these, who it is; waits for at least so many."""
        request = Message(HELLO, 0)
        asked = range(len(self.node_of_client)) if clients is None else clients
        found, _ = self.gather_replies(request, {HELLO: list(asked)}, min_clients)
        return {client: reply for (_, client), reply in found.items()}

    def server_job(self, job: Job) -> Job:
        """The job with the metric that was chosen once the nodes had told how frequent their classes are."""
        return self.job

    def count_classes(self) -> None:
        """Ask all nodes how many of their test samples each class has, and choose the metric by it."""
        job, shape = self.job, torch.Size([self.job.template.classes])
        self.expect(CLASSES, {CLASSES: shape})
        request = Message(CLASSES, 0, numbers={"lr": job.settings.lr})
        total = torch.zeros(shape, dtype=torch.float64)
        for reply in self.run(request, job.everyone):
            if reply.kind == LOST:
                continue
            problem = validate_reply(reply, request, {CLASSES: shape}, self.sample_limit(reply.unit))
            most = sum(len(job.federation.local_test[client]) for client in self.represented_clients(reply))
            if problem is None and not is_plausible_count(reply.tensors[CLASSES], most):
                problem = f"they are no counts of {most:,} samples"
            if problem is not None:
                self.notify(f"Counts of test samples by class were refused: {problem}.")
                continue
            total += reply.tensors[CLASSES].double()
        self.choose_metric(total.round().long().clamp(min=0))

    def choose_metric(self, counts: torch.Tensor | None) -> None:
        """Choose the metric, if that is open, by what is known of samples by class."""
        job = self.job
        federation = replace(job.federation, told_counts=counts)
        chosen = job.settings.model_copy(update={"metric": choose_metric(job.settings, federation)})
        self.metric = told_metric(job.settings, chosen)
        self.job = replace(job, federation=federation, settings=chosen)

    def expect(self, kind: str, shapes: Mapping[str, torch.Size]) -> None:
        """Take note of the names and shapes that replies to a kind of request have."""
        self.expected[kind] = dict(shapes)

    def represented_clients(self, reply: Message) -> list[int]:
        """The clients for which a reply stands: with secure aggregation all whose sum it is."""
        return self.summed if self.job.settings.secure else [reply.unit]

    def sample_limit(self, client: int) -> int | None:
        """No client has more training samples than it said before the first round; sums were checked before."""
        return None if self.job.settings.secure else len(self.job.federation.train[client])

    def mark_merged(self, clients: Sequence[int], round: int) -> None:
        """Nodes may forget earlier states of these clients."""
        self.seen[list(clients)] = round

    def state(self) -> dict[str, torch.Tensor]:
        """The last round in which each client's reply was merged."""
        return {"seen": self.seen}

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Go on from what `state` gave."""
        self.seen = tensors.get("seen", self.seen)

    def processes(self) -> list[int]:
        """Ids of the processes on this machine."""
        return self.transport.processes()

    def close(self) -> None:
        """End what was started."""
        self.transport.close()

    # -- how it is done ------------------------------------------------------------------------------------------------
    def gather_replies(
        self,
        request: Message,
        wanted: Mapping[str, Sequence[int]],
        min_replies: int,
        group: MaskingGroup | None = None,
        timeout: float = float("inf"),
    ) -> tuple[dict[tuple[str, int], Message], dict[str, str]]:
        """Replies by kind and client, and for nodes without a usable one the reason.

        At least `min_replies` to the request itself are usable, unless the timeout has passed, or all have arrived and
        none is usable: then asking again would not help, and the server says what would.
        """
        began = time.monotonic()
        tasks = self.tasks_by_node(wanted)
        found: dict[tuple[str, int], Message] = {}
        reasons: dict[str, str] = {}
        units = set(wanted.get(request.kind, ()))
        usable: set[int] = set()  # clients whose replies to the request itself can be used
        waiting, pause = list(tasks), RETRY_INTERVAL / 2
        while True:
            connected = self.transport.nodes()
            reasons |= {node: "its node is not connected" for node in waiting if node not in connected}
            reachable = [node for node in waiting if node in connected]
            within_reach = usable.union(*(tasks[node].get(request.kind, ()) for node in reachable))
            asked = len(within_reach) >= min_replies
            if asked:
                self.exchange(request, {node: tasks[node] for node in reachable}, found, reasons, group)
                problems = {client: self.reply_problem(request, client, found, group) for client in units}
                usable = {client for client, problem in problems.items() if problem is None}
                refused = {self.node_of_client[client]: text for client, text in problems.items() if text is not None}
                reasons = refused | reasons
                waiting, within_reach = [node for node in waiting if node in reasons], usable
                if group is None:  # under masks a sum says how many have diverged
                    self.check_diverged(request, units - usable, found, min_replies, len(units))
            hopeless = group is None and not usable and all((request.kind, client) in found for client in units)
            timed_out = time.monotonic() - began >= timeout
            if not waiting or timed_out or len(usable) >= min_replies or hopeless:
                self.durations.append(time.monotonic() - began)
                return found, reasons
            self.remind(
                request, min_replies, len(within_reach), {node: reasons[node] for node in waiting if node in reasons}
            )
            # A node that is asked for the same again does work for it.
            pause = min(2 * pause, REMINDER_INTERVAL) if asked else RETRY_INTERVAL
            time.sleep(pause)

    def tasks_by_node(self, wanted: Mapping[str, Sequence[int]]) -> dict[str, dict[str, list[int]]]:
        """The tasks of every node that has any."""
        tasks: dict[str, dict[str, list[int]]] = {}
        for kind, clients in wanted.items():
            for client in clients:
                tasks.setdefault(self.node_of_client[client], {}).setdefault(kind, []).append(client)
        return tasks

    def reply_problem(
        self, request: Message, client: int, found: Mapping[tuple[str, int], Message], group: MaskingGroup | None
    ) -> str | None:
        """Why a client's reply to the request itself cannot be used, if so."""
        reply, shapes = found.get((request.kind, client)), self.expected.get(request.kind)
        if reply is None:
            return NO_REPLY
        if request.kind in (AGREE, UNMASK) or (shapes is None and group is None):
            return None
        max_samples = len(self.job.federation.train[client])
        if group is None and shapes is not None:
            withheld = withholds_figures(self.job.settings)
            return validate_reply(reply, request, shapes, max_samples, withheld=withheld)
        from fedframe.network.secure_aggregation import masked_vector, vector_size

        assert group is not None
        vector = masked_vector(reply, vector_size(self.masked_shapes), max_samples, group)
        return vector if isinstance(vector, str) else None

    def check_diverged(
        self,
        request: Message,
        unusable: Collection[int],
        found: Mapping[tuple[str, int], Message],
        min_replies: int,
        asked: int,
    ) -> None:
        """End the run if too few finite replies can ever be left: the same request gives the same replies."""
        diverged = [client for client in unusable if not has_numbers(found.get((request.kind, client)))]
        if diverged and asked - len(diverged) < min_replies:
            names = ", ".join(str(self.job.federation.names[client]) for client in diverged[:5])
            private = ", or with less privacy_noise or a smaller net" if self.job.settings.privacy_noise else ""
            raise DivergedError(
                f"Round {request.round}: the training of {names} gives no finite numbers any more, and at least "
                f"{min_replies} of {asked} clients must; start again with a smaller lr (now "
                f"{request.numbers.get('lr')}) or with clip = 10{private}."
            )

    def exchange(
        self,
        request: Message,
        tasks: Mapping[str, dict[str, list[int]]],
        found: dict[tuple[str, int], Message],
        reasons: dict[str, str],
        group: MaskingGroup | None = None,
    ) -> None:
        """Send to these nodes and wait for what comes back, good or bad."""
        patience = self.job.settings.patience
        late = f"it took longer than patience = {patience:g} seconds" if patience is not None else "it took too long"
        pending: dict[str, PendingRequest] = {}  # by ticket; one that was sent twice has two, and the first counts
        began, usual = time.monotonic(), 2 * max(self.durations[-5:], default=0.0)
        remind_at = began + max(REMINDER_INTERVAL, usual)

        def send(each: PendingRequest) -> None:
            each.mark_sent(time.monotonic())
            pending[self.transport.send(each.node, each.node_request.to_bytes(), request.round, patience)] = each

        for node, asked in tasks.items():
            described = group.to_json() if group is not None else None
            number = self.numbers.next() if request.kind != HELLO else 0
            node_request = NodeRequest(
                self.run_name, addressed(request, asked), asked, self.merged_rounds(request, asked), described, number
            )
            reasons.pop(node, None)
            deadline = time.monotonic() + (patience if patience is not None else float("inf"))
            try:
                send(PendingRequest(node, node_request, deadline))
            except DataError as error:
                reasons[node] = str(error)
        while pending:
            limits = {ticket: self.max_answer_bytes(each.node_request) for ticket, each in pending.items()}
            for delivery in self.transport.collect(limits):
                answered = pending.get(delivery.ticket)
                if answered is None:  # an answer to nothing that was asked
                    continue
                if delivery.doubtful:
                    answered.mark_doubtful()
                    continue
                pending = {ticket: other for ticket, other in pending.items() if other is not answered}
                try:
                    if delivery.problem:  # a request that has expired on the way is one that took too long
                        raise DataError(late if time.monotonic() >= answered.deadline else delivery.problem)
                    found |= decode_replies(
                        delivery.content, answered.node_request, self.max_answer_bytes(answered.node_request)
                    )
                except DataError as error:
                    reasons[answered.node] = str(error).rstrip(".")
            now = time.monotonic()
            reasons |= {each.node: late for each in pending.values() if now >= each.deadline}
            pending = {ticket: each for ticket, each in pending.items() if now < each.deadline}
            for due in dict.fromkeys(each for each in pending.values() if now >= each.resend_at):
                with contextlib.suppress(DataError):
                    send(due)
            if pending and now >= remind_at:
                names = ", ".join(sorted({each.node for each in pending.values()}))
                self.notify(f"{request_title(request)}: still no answer of {names} after {now - began:.0f} s.")
                remind_at = now + (now - began)
            if pending:
                time.sleep(POLL_INTERVAL)

    def merged_rounds(self, request: Message, asked: Mapping[str, Sequence[int]]) -> dict[int, int]:
        """The last round of each client that was merged: its node forgets the states of later ones."""
        if request.kind in (HELLO, AGREE, UNMASK, CLASSES):  # asked before a resumed run knows which rounds it has
            return {}
        return {client: int(self.seen[client]) for clients in asked.values() for client in clients}

    def max_answer_bytes(self, node_request: NodeRequest) -> int:
        """How many bytes the answer to a request may have."""
        clients = sum(len(clients) for clients in node_request.tasks.values())
        numbers = (sum(shape.numel() for shape in shapes.values()) for shapes in self.expected.values())
        one = 4 * self.job.roles.layout.size + 8 * max(numbers, default=0)  # in float64, or masked
        one += 8 * evidence_size(self.job.target, self.job.template.classes, self.job.settings.score_bins)
        return (1 << 20) + REPLY_SIZE_FACTOR * (one + node_request.request.nbytes) * clients

    def remind(self, request: Message, min_replies: int, within_reach: int, reasons: Mapping[str, str]) -> None:
        """Say what is awaited: at once when it changes, else from time to time."""
        text = "; ".join(f"{node}: {reason[:MAX_REASON_LENGTH]}" for node, reason in sorted(reasons.items()))
        when, before = self._last_reminder
        if text != before or time.monotonic() - when > REMINDER_INTERVAL:
            self._last_reminder = (time.monotonic(), text)
            missing = min_replies - within_reach
            self.notify(
                f"{request_title(request)}: waiting for {missing} more of at least {min_replies} clients ({text})."
            )


def is_plausible_count(counts: torch.Tensor, most: int) -> bool:
    """Whether these can be the samples of each class, of so many at most."""
    return float(counts.min()) >= -COUNT_SLACK and float(counts.sum()) <= most + COUNT_SLACK


def addressed(request: Message, asked: Mapping[str, Sequence[int]]) -> Message:
    """A request for seeds with the shares that are for these clients alone; any other as it is."""
    if request.kind != UNMASK:
        return request
    mine = tuple(f"{client}/" for client in asked[UNMASK])
    return replace(request, tensors={name: t for name, t in request.tensors.items() if name.startswith(mine)})


def request_title(request: Message) -> str:
    """Name what is awaited, for people."""
    if request.kind == CLASSES:
        return "How frequent the classes are"
    return "The nodes' first reply" if request.kind == HELLO else f"Round {request.round}, {request.kind}"


def check_hello(job: Job, replies: Mapping[int, Message], digest: str) -> None:
    """Refuse clients that would not do the same work: another program, another initial model."""
    for client, reply in replies.items():
        name = job.federation.names[client]
        for what, own in versions().items():
            if reply.numbers.get(what) != own:
                named = {"version": "Fedframe", "protocol": "a Fedframe of protocol"}.get(what, what)
                raise RunError(
                    f"{name} has {named} {str(reply.numbers.get(what, '1'))[:40]!r} and the server {own!r}: install "
                    "the same versions of Fedframe and torch everywhere."
                )
        if reply.numbers.get("template") != digest:
            raise RunError(
                f"The initial model of {name} is another than the server's: hand out the kits of this config."
            )
        if reply.numbers.get("uploads") != upload_digest(job):
            raise RunError(
                f"{name} would send other tensors than the server expects: install the same Fedframe, and the same "
                "files of your own, everywhere."
            )
        if job.settings.secure:
            from fedframe.network.masks import usable_key

            if not usable_key(str(reply.numbers.get("key"))):
                raise RunError(f"{name} has sent no key, and secure = true needs one of everybody; look at its log.")


def masking_keys(replies: Mapping[int, Message]) -> dict[int, str]:
    """The public keys for secure aggregation of the clients that have sent one."""
    return {client: str(reply.numbers["key"]) for client, reply in replies.items() if "key" in reply.numbers}
