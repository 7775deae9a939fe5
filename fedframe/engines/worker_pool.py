"""Clients in worker processes, one per core: units are handed out one by one, replies come back in their order.

Workers are forked, so they share the data and the program with this process, start in milliseconds, and work from a
script, a notebook or a test alike. A worker that dies is replaced and its unit done again, once.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import signal
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

import torch
from torch import nn

from fedframe.core.engine import Engine
from fedframe.core.job import Job
from fedframe.core.message import Message
from fedframe.core.optimizers import make_optimizer
from fedframe.engines.shared_memory import Slab
from fedframe.engines.worker import receive_message, stops_held, tidy_before_fork, work
from fedframe.errors import RunError

MOST_HELD = 512 << 20  # bytes of replies that may wait for their turn before workers pause
HEADROOM = 4  # shared memory for messages of up to four models; larger ones go through the pipe


@dataclass
class WorkerHandle:
    """One worker process as seen from here."""

    outboxes: tuple[Slab, Slab]  # two, so that a worker can write one reply while the last is still being read
    slot: int = 0
    unit: int | None = None
    process: ForkProcess = field(init=False)
    pipe: Connection = field(init=False)


class WorkerEngine(Engine):
    """Runs orders in worker processes."""

    def __init__(self, job: Job, workers: int, notify: Callable[[str], None]) -> None:
        self.job = job
        self.notify = notify
        self._context = multiprocessing.get_context("fork")
        capacity = HEADROOM * 4 * job.roles.layout.size + (1 << 20)
        self._inbox = Slab(capacity)
        # Threads here would take their time from the workers: waiting threads of torch spin.
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        # Torch's own optimisers import its compiler when the first is made: once here, not once per worker.
        make_optimizer(job.settings, [nn.Parameter(torch.zeros(1))], 0.1)
        tidy_before_fork()
        self._announcement: list[bytes] = []
        self._held = 0
        self.hands: list[WorkerHandle] = []
        for _ in range(workers):
            hand = WorkerHandle((Slab(capacity), Slab(capacity)))
            self._start(hand)
            self.hands.append(hand)

    def run(self, request: Message, units: Sequence[int]) -> Iterator[Message]:
        """Have the order performed for every unit; the reply's tensors are lent until the next one is asked for."""
        expected = deque(units)
        early: dict[int, Message] = {}  # replies that came before their turn
        self._held = 0
        for reply in self._as_they_come(request, units):
            if reply.unit != expected[0]:
                own = {name: tensor.clone() for name, tensor in reply.tensors.items()}
                early[reply.unit] = replace(reply, tensors=own)
                self._held += reply.nbytes
                continue
            expected.popleft()
            yield reply
            while expected and expected[0] in early:
                waited = early.pop(expected.popleft())
                self._held -= waited.nbytes
                yield waited

    def processes(self) -> list[int]:
        """Ids of the worker processes."""
        return [hand.process.pid for hand in self.hands if hand.process.pid is not None]

    def close(self) -> None:
        """End the worker processes; they hold nothing that would be lost."""
        for hand in self.hands:
            hand.process.kill()
            hand.pipe.close()
        for hand in self.hands:
            hand.process.join()
        self.hands = []
        torch.set_num_threads(self._threads)

    def _as_they_come(self, request: Message, units: Sequence[int]) -> Iterator[Message]:
        self._announce(request)
        waiting = deque(units)
        retried: set[int] = set()
        for _ in units:
            self._hand_out(waiting)
            reply = self._next(request, retried)
            # The worker gets its next unit before the reply is merged, so that it never waits for the merge.
            self._hand_out(waiting)
            yield reply

    def _announce(self, request: Message) -> None:
        while any(hand.unit is not None for hand in self.hands):
            self._next(request, set())  # of an earlier order, from which nobody wanted all replies
        specs = self._inbox.write(request.tensors)
        self._announcement = [json.dumps({"message": request.head(), "specs": specs}).encode()]
        if specs is None:
            self._announcement.append(request.to_bytes())
        for hand in self.hands:
            self._tell(hand, *self._announcement)

    def _hand_out(self, waiting: deque[int]) -> None:
        """Give idle workers their next unit, unless too many replies wait for one that is late."""
        for hand in self.hands:
            if hand.unit is None and waiting and self._held < MOST_HELD:
                hand.unit = waiting.popleft()
                self._tell(hand, json.dumps({"unit": hand.unit, "slot": hand.slot}).encode())

    def _next(self, request: Message, retried: set[int]) -> Message:
        """The next reply of any worker; one that died on the way is replaced."""
        while True:
            busy = {hand.pipe: hand for hand in self.hands if hand.unit is not None}
            hand = busy[wait(list(busy))[0]]  # type: ignore[index]
            reply = self._take(hand, request, retried)
            if reply is not None:
                return reply

    def _tell(self, hand: WorkerHandle, *messages: bytes) -> None:
        # A worker that is dead by now is noticed, and replaced, when its reply is awaited.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for message in messages:
                hand.pipe.send_bytes(message)

    def _take(self, hand: WorkerHandle, request: Message, retried: set[int]) -> Message | None:
        """The reply of a worker, or None when it died and was replaced."""
        try:
            head = json.loads(hand.pipe.recv_bytes())
            if "error" in head:
                error = RunError(head["error"])
                error.add_note(head["trace"])
                raise error
            reply = receive_message(hand.pipe, hand.outboxes[hand.slot], head)
        except (EOFError, OSError):  # it died while idle, or in the middle of a message
            self._replace(hand, request, retried)
            return None
        hand.slot, hand.unit = 1 - hand.slot, None
        return reply

    def _replace(self, hand: WorkerHandle, request: Message, retried: set[int]) -> None:
        hand.process.join()
        unit = hand.unit
        assert unit is not None
        died = f"the worker process of round {request.round}, {request.kind}, unit {unit} died ({cause(hand.process)})"
        if unit in retried:
            raise RunError(
                f"Twice, {died}; with fewer --workers or a smaller --batch it needs less memory. "
                "All finished rounds are kept."
            )
        retried.add(unit)
        self.notify(f"{died[0].upper()}{died[1:]}; it was replaced and the unit is done again.")
        hand.pipe.close()
        self._start(hand)
        self._tell(hand, *self._announcement, json.dumps({"unit": unit, "slot": hand.slot}).encode())

    def _start(self, hand: WorkerHandle) -> None:
        here, there = self._context.Pipe()
        others = [other.pipe for other in self.hands if other is not hand]
        process = self._context.Process(
            target=work,
            args=(self.job, there, self._inbox, hand.outboxes, [here, *others]),
            name=f"fedframe-worker-{len(self.hands)}",
            daemon=True,
        )
        with warnings.catch_warnings(), stops_held():
            # Python warns of threads at a fork. The worker touches none of them: it runs one torch thread of its own.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        there.close()
        hand.process, hand.pipe = process, here


def cause(process: ForkProcess) -> str:
    """Why a process ended, for people."""
    code = process.exitcode
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return f"{name}: perhaps out of memory" if name == "SIGKILL" else name
    return f"exit code {code}"
