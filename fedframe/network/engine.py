"""Clients at nodes of a network: one letter per node and order, replies in the order of the units.

What carries the letters is a `Transport`. Whatever happens on the way (a node that is
gone, slow or raises, a letter that is none) ends as a `lost` reply with its reason. With fewer replies that can be used
than `min_clients` the engine waits, says so, and asks again; a client that is asked twice gives the same reply, so
nothing is counted twice.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from fedframe.core.client_runtime import ClientRuntime
from fedframe.core.engine import Engine
from fedframe.core.job import Job
from fedframe.core.message import Message, has_numbers, validate_reply
from fedframe.core.remote_evaluation import RemoteEvaluation
from fedframe.errors import DataError, DivergedError, RunError
from fedframe.network.node import versions
from fedframe.network.node_request import HELLO, UNMASK, NodeRequest, read_answer
from fedframe.network.request_numbers import Numbers
from fedframe.network.transport import PendingRequest, Transport

if TYPE_CHECKING:
    from fedframe.network.masks import MaskingGroup

POLL = 0.25  # seconds between two looks for replies
RETRY = 5.0  # seconds between two attempts to reach enough clients
REMIND = 60.0  # seconds between two sentences that say what is waited for
LEFT_OUT = "its node's answer leaves it out"
MOST_REASON = 200  # characters of each, where the reasons of all nodes stand in one sentence
SUMMED = ("train", "statistics")  # orders whose replies are added up with secure aggregation
ROOM = 4  # a reply is at most so many times what is expected of the largest client's, plus a little


class NetworkEngine(Engine):
    """Has orders performed by nodes; only the server's own test data are used here."""

    def __init__(self, job: Job, post: Transport, seats: Sequence[str], run: str, note: Callable[[str], None]) -> None:
        self.job, self.post, self.run_name, self.note = job, post, run, note
        self.seats = tuple(seats)  # the node of every client
        self.numbers = Numbers(job.folder)
        self.seen = torch.zeros(len(seats), dtype=torch.int64)  # the last round in which a client's reply was merged
        self.keys: dict[int, str] = {}  # clients' public keys, for secure aggregation
        self.summed: list[int] = []
        self.expected: dict[str, dict[str, torch.Size]] = {}  # names and shapes of replies; the server fills it
        self.seconds: list[float] = []  # how long each order took, for those who measure
        self._also: dict[str, list[int]] = {}
        self._heard: dict[str, list[Message]] = {}
        self._site: ClientRuntime | None = None
        self._said = (0.0, "")
        self.evaluation = RemoteEvaluation(self)

    # -- what the server asks ------------------------------------------------------------------------------------------
    def run(self, request: Message, units: Sequence[int]) -> Iterator[Message]:
        """Have the order performed for every unit, and what was asked for beside it."""
        if request.kind == "score":
            self._site = self._site or ClientRuntime(self.job)
            for unit in units:
                yield self._site.perform(request, unit)
            return
        also, self._also = self._also, {}
        wanted = {**also, **({request.kind: list(units)} if units else {})}
        circle = None
        if self.job.settings.secure and request.kind in SUMMED and units:
            from fedframe.network.secure_rounds import added_up, circle_of

            circle = circle_of(self, request, units)
        found, reasons = self.fetch(request, wanted, self.job.fewest(len(units)), circle)

        def reply(kind: str, client: int) -> Message:
            reason = reasons.get(self.seats[client], LEFT_OUT)
            return found.get((kind, client)) or Message.lost(request, client, reason)

        self._heard = {kind: [reply(kind, client) for client in clients] for kind, clients in also.items()}
        if circle is not None:
            yield from added_up(self, request, [reply(request.kind, unit) for unit in units], circle)
            return
        for unit in units:
            yield reply(request.kind, unit)

    def piggyback(self, kind: str, clients: Sequence[int]) -> None:
        """With the next order these clients do this too, before it."""
        self._also[kind] = sorted({*self._also.get(kind, ()), *clients})

    def awaits(self) -> bool:
        """Whether something was asked for that no order has taken along yet."""
        return bool(self._also)

    def pop_replies(self, kind: str) -> list[Message] | None:
        """What the last order brought back of this kind, once."""
        return self._heard.pop(kind, None)

    def hello(self, fewest: int) -> dict[int, Message]:
        """Every client's word on who it is; waits for at least so many."""
        request = Message(HELLO, 0)
        found, _ = self.fetch(request, {HELLO: list(range(len(self.seats)))}, fewest)
        return {client: reply for (_, client), reply in found.items()}

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
        return self.post.processes()

    def close(self) -> None:
        """End what was started."""
        self.post.close()

    # -- how it is done ------------------------------------------------------------------------------------------------
    def fetch(
        self,
        request: Message,
        wanted: Mapping[str, Sequence[int]],
        fewest: int,
        circle: MaskingGroup | None = None,
        seconds: float = float("inf"),
    ) -> tuple[dict[tuple[str, int], Message], dict[str, str]]:
        """Replies by kind and client, and for nodes without a good one the reason.

        At least `fewest` of the order's own can be used, unless so many seconds have passed, or every one has come and
        none can be used: then asking again would not help, and the server says what would.
        """
        began = time.monotonic()
        tasks = self.by_node(wanted)
        found: dict[tuple[str, int], Message] = {}
        reasons: dict[str, str] = {}
        units = set(wanted.get(request.kind, ()))
        fine: set[int] = set()  # clients whose replies to the order itself can be used
        waiting, pause = list(tasks), RETRY / 2
        while True:
            connected = self.post.nodes()
            reasons |= {node: "its node is not connected" for node in waiting if node not in connected}
            reachable = [node for node in waiting if node in connected]
            within_reach = fine.union(*(tasks[node].get(request.kind, ()) for node in reachable))
            asked = len(within_reach) >= fewest
            if asked:
                self.exchange(request, {node: tasks[node] for node in reachable}, found, reasons, circle)
                problems = {client: self.problem(request, client, found, circle) for client in units}
                fine = {client for client, problem in problems.items() if problem is None}
                reasons = {self.seats[client]: text for client, text in problems.items() if text is not None} | reasons
                waiting, within_reach = [node for node in waiting if node in reasons], fine
                self.check_diverged(request, units - fine, found, fewest, len(units))
            hopeless = circle is None and not fine and all((request.kind, client) in found for client in units)
            over = time.monotonic() - began >= seconds
            if not waiting or over or len(fine) >= fewest or hopeless:
                self.seconds.append(time.monotonic() - began)
                return found, reasons
            self.remind(
                request, fewest, len(within_reach), {node: reasons[node] for node in waiting if node in reasons}
            )
            pause = min(2 * pause, REMIND) if asked else RETRY  # whoever is asked for the same again does work for it
            time.sleep(pause)

    def by_node(self, wanted: Mapping[str, Sequence[int]]) -> dict[str, dict[str, list[int]]]:
        """The tasks of every node that has any."""
        tasks: dict[str, dict[str, list[int]]] = {}
        for kind, clients in wanted.items():
            for client in clients:
                tasks.setdefault(self.seats[client], {}).setdefault(kind, []).append(client)
        return tasks

    def problem(
        self, request: Message, client: int, found: Mapping[tuple[str, int], Message], circle: MaskingGroup | None
    ) -> str | None:
        """Why a client's reply to the order itself cannot be used, if so; the server says it where it refuses one."""
        reply, shapes = found.get((request.kind, client)), self.expected.get(request.kind)
        if reply is None:
            return LEFT_OUT
        if shapes is None:
            return None
        most = len(self.job.federation.train[client])
        if circle is None:
            return validate_reply(reply, request, shapes, most)
        from fedframe.network.secure_sums import masked_words

        words = masked_words(reply, 1 + sum(shape.numel() for shape in shapes.values()), most)
        return words if isinstance(words, str) else None

    def check_diverged(
        self,
        request: Message,
        flawed: Collection[int],
        found: Mapping[tuple[str, int], Message],
        fewest: int,
        asked: int,
    ) -> None:
        """End the run if too few can ever be left whose replies hold numbers: the same order gives the same replies."""
        blown = [client for client in flawed if not has_numbers(found.get((request.kind, client)))]
        if blown and asked - len(blown) < fewest:
            names = ", ".join(str(self.job.federation.names[client]) for client in blown[:5])
            private = ", or with less privacy_noise or a smaller net" if self.job.settings.privacy_noise else ""
            raise DivergedError(
                f"Round {request.round}: the training of {names} gives no finite numbers any more, and at least "
                f"{fewest} of {asked} clients must; start again with a smaller lr (now {request.numbers.get('lr')}) "
                f"or with clip = 10{private}."
            )

    def exchange(
        self,
        request: Message,
        tasks: Mapping[str, dict[str, list[int]]],
        found: dict[tuple[str, int], Message],
        reasons: dict[str, str],
        circle: MaskingGroup | None = None,
    ) -> None:
        """Send to these nodes and wait for what comes back, good or bad."""
        patience = self.job.settings.patience
        late = f"it took longer than patience = {patience:g} seconds" if patience is not None else "it took too long"
        out: dict[
            str, PendingRequest
        ] = {}  # by ticket; a letter that was sent twice has two, and the first answer counts
        began, usual = time.monotonic(), 2 * max(self.seconds[-5:], default=0.0)
        say_at = began + max(REMIND, usual)

        def send(letter: PendingRequest) -> None:
            letter.sent(time.monotonic())
            out[self.post.send(letter.node, letter.errand.to_bytes(), request.round, patience)] = letter

        for node, asked in tasks.items():
            notes = circle.notes() if circle is not None else None
            number = self.numbers.next() if request.kind != HELLO else 0
            errand = NodeRequest(self.run_name, request, asked, self.merged(request, asked), notes, number)
            reasons.pop(node, None)
            limit = time.monotonic() + (patience if patience is not None else float("inf"))
            try:
                send(PendingRequest(node, errand, limit))
            except DataError as error:
                reasons[node] = str(error)
        while out:
            for delivery in self.post.collect({ticket: self.most(letter.errand) for ticket, letter in out.items()}):
                letter = out.get(delivery.ticket)
                if letter is None:  # an answer to nothing that was asked
                    continue
                if delivery.doubtful:
                    letter.doubt()
                    continue
                out = {ticket: other for ticket, other in out.items() if other is not letter}
                try:
                    if delivery.problem:  # a letter that has expired on the way is one that took too long
                        raise DataError(late if time.monotonic() >= letter.limit else delivery.problem)
                    found |= read_answer(delivery.content, letter.errand, self.most(letter.errand))
                except DataError as error:
                    reasons[letter.node] = str(error).rstrip(".")
            now = time.monotonic()
            reasons |= {letter.node: late for letter in out.values() if now >= letter.limit}
            out = {ticket: letter for ticket, letter in out.items() if now < letter.limit}
            for letter in dict.fromkeys(letter for letter in out.values() if now >= letter.again):
                with contextlib.suppress(DataError):
                    send(letter)
            if out and now >= say_at:
                names = ", ".join(sorted({letter.node for letter in out.values()}))
                self.note(f"{what_of(request)}: still no answer of {names} after {now - began:.0f} s.")
                say_at = now + (now - began)
            if out:
                time.sleep(POLL)

    def merged(self, request: Message, asked: Mapping[str, Sequence[int]]) -> dict[int, int]:
        """The last round of each client that was merged: states of later ones are to be forgotten."""
        if request.kind in (HELLO, UNMASK):  # asked before a resumed run knows which rounds it has
            return {}
        return {client: int(self.seen[client]) for clients in asked.values() for client in clients}

    def most(self, errand: NodeRequest) -> int:
        """Bytes that the answer to an errand may have."""
        clients = sum(len(clients) for clients in errand.tasks.values())
        # Statistics are small beside a model but for tiny nets: the square of a feature's width, in float64.
        model = self.job.template
        one = 4 * self.job.roles.layout.size + 8 * model.dim * (model.dim + model.classes) + errand.request.nbytes
        return (1 << 20) + ROOM * one * clients

    def remind(self, request: Message, fewest: int, within_reach: int, reasons: Mapping[str, str]) -> None:
        """Say what is waited for: at once when it changes, else from time to time."""
        text = "; ".join(f"{node}: {reason[:MOST_REASON]}" for node, reason in sorted(reasons.items()))
        when, before = self._said
        if text != before or time.monotonic() - when > REMIND:
            self._said = (time.monotonic(), text)
            self.note(
                f"{what_of(request)}: waiting for {fewest - within_reach} more of at least {fewest} clients ({text})."
            )


def what_of(request: Message) -> str:
    """What is waited for, in words."""
    return "The nodes' first word" if request.kind == HELLO else f"Round {request.round}, {request.kind}"


def check_hello(job: Job, replies: Mapping[int, Message], digest: str) -> None:
    """Refuse clients that would not do the same work: another program, another initial model."""
    for client, reply in replies.items():
        name = job.federation.names[client]
        for what, here in versions().items():
            if reply.numbers.get(what) != here:
                raise RunError(
                    f"{name} has {'Fedframe' if what == 'version' else what} {str(reply.numbers.get(what))[:40]!r} and "
                    f"the server {here!r}: install the same versions of Fedframe and torch everywhere."
                )
        if reply.numbers.get("template") != digest:
            raise RunError(
                f"The initial model of {name} is another than the server's: hand out the kits of this config."
            )
        if job.settings.secure and not re.fullmatch("[0-9a-f]{64}", str(reply.numbers.get("key"))):
            raise RunError(f"{name} has told no key, and secure = true needs one of everybody; look at its log.")


def keys_of(replies: Mapping[int, Message]) -> dict[int, str]:
    """Clients' public keys, where they have told one."""
    return {client: str(reply.numbers["key"]) for client, reply in replies.items() if "key" in reply.numbers}
