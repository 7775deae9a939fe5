"""Clients in worker processes, one per core: units are assigned one by one, replies come back in their order.

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

from fedframe.core.client_groups import (
    GROUPED,
    group_request,
    groups_of,
    joins_replies,
    single_request,
    split_replies,
)
from fedframe.core.engine import Engine
from fedframe.core.job import Job
from fedframe.core.message import Message
from fedframe.core.optimizers import make_optimizer
from fedframe.core.stacked_training import MOST_TOGETHER
from fedframe.engines.shared_memory import Slab
from fedframe.engines.worker import receive_message, release_free_memory, signals_blocked, worker_main
from fedframe.errors import RunError
from fedframe.jobs.devices import device_names

MAX_HELD_BYTES = 512 << 20  # bytes of replies that may wait for their turn before workers pause
HEADROOM = 4  # shared memory for messages of up to four models; larger ones go through the pipe


@dataclass
class WorkerHandle:
    """The parent's handle of one worker process."""

    outboxes: tuple[Slab, Slab]  # two, so that a worker can write one reply while the last is still being read
    device: str = "cpu"
    slot: int = 0
    unit: int | None = None
    written: list[int] = field(default_factory=lambda: [-1, -1])  # whose replies lie in the outboxes
    process: ForkProcess = field(init=False)
    pipe: Connection = field(init=False)


class WorkerEngine(Engine):
    """Runs requests in worker processes."""

    def __init__(self, job: Job, count: int, notify: Callable[[str], None]) -> None:
        self.job = job
        self.notify = notify
        self._context = multiprocessing.get_context("fork")
        models = HEADROOM + (MOST_TOGETHER if joins_replies(job) else 0)
        capacity = models * 4 * job.roles.layout.size + (1 << 20)
        self._inbox = Slab(capacity)
        # Threads of this process would take time from the workers: waiting threads of torch spin.
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        # Torch's own optimisers import its compiler when the first is made: once here, not once per worker.
        make_optimizer(job.settings, [nn.Parameter(torch.zeros(1))], 0.1)
        release_free_memory()
        self._announcement: list[bytes] = []
        self._held_bytes = 0
        self._early: dict[int, Message] = {}  # replies that came before their turn
        self.devices = device_names(job.settings.device)
        self.sharing = -(-count // len(self.devices))
        self.workers: list[WorkerHandle] = []
        for number in range(count):
            device = self.devices[number % len(self.devices)]
            worker = WorkerHandle((Slab(capacity), Slab(capacity)), device)
            self._start(worker)
            self.workers.append(worker)

    def run(self, request: Message, units: Sequence[int]) -> Iterator[Message]:
        """Have the request performed for every unit; a reply's tensors are valid until the next one is asked for."""
        groups = groups_of(self.job, request, units, len(self.workers))
        if groups is None:
            yield from self._run_units(request, units)
            return
        joined, numbers = group_request(request, groups)
        for reply in self._run_units(joined, numbers):
            yield from split_replies(reply, single_request(joined, reply.unit)[1])

    def _run_units(self, request: Message, units: Sequence[int]) -> Iterator[Message]:
        expected = deque(units)
        early = self._early = {}
        self._held_bytes = 0
        for reply in self._replies_as_completed(request, units):
            if reply.unit != expected[0]:
                early[reply.unit] = reply
                self._held_bytes += reply.nbytes
                continue
            expected.popleft()
            yield reply
            while expected and expected[0] in early:
                waited = early.pop(expected.popleft())
                self._held_bytes -= waited.nbytes
                yield waited

    def server_job(self, job: Job) -> Job:
        """Never on a GPU: a worker that dies could not be replaced by a fork of a process that has used CUDA."""
        return job.on("cpu")

    def processes(self) -> list[int]:
        """Ids of the worker processes."""
        return [worker.process.pid for worker in self.workers if worker.process.pid is not None]

    def close(self) -> None:
        """End the worker processes; they hold nothing that would be lost."""
        for worker in self.workers:
            worker.process.kill()
            worker.pipe.close()
        for worker in self.workers:
            worker.process.join()
        self.workers = []
        torch.set_num_threads(self._threads)

    def _replies_as_completed(self, request: Message, units: Sequence[int]) -> Iterator[Message]:
        self._announce(request)
        waiting = deque(units)
        retried: set[int] = set()
        for _ in units:
            self._assign_units(waiting)
            reply = self._next_reply(request, retried)
            # The worker gets its next unit before the reply is merged, so that it never waits for the merge.
            self._assign_units(waiting)
            yield reply

    def _announce(self, request: Message) -> None:
        while any(worker.unit is not None for worker in self.workers):
            self._next_reply(request, set())  # of an earlier request, of which not all replies were wanted
        specs = self._inbox.write(request.tensors)
        self._announcement = [json.dumps({"message": request.head(), "specs": specs}).encode()]
        if specs is None:
            self._announcement.append(request.to_bytes())
        for worker in self.workers:
            self._send(worker, *self._announcement)

    def _assign_units(self, waiting: deque[int]) -> None:
        """Give idle workers their next unit, unless too many replies wait for one that is late."""
        for worker in self.workers:
            if worker.unit is None and waiting and self._held_bytes < MAX_HELD_BYTES:
                self._clear_slot(worker)
                worker.unit = waiting.popleft()
                self._send(worker, json.dumps({"unit": worker.unit, "slot": worker.slot}).encode())

    def _clear_slot(self, worker: WorkerHandle) -> None:
        """Copy the reply that lies where the worker will write, if it still waits for its turn; most have had it."""
        reply = self._early.get(worker.written[worker.slot])
        if reply is not None:
            own = {name: tensor.clone() for name, tensor in reply.tensors.items()}
            self._early[reply.unit] = replace(reply, tensors=own)

    def _next_reply(self, request: Message, retried: set[int]) -> Message:
        """The next reply of any worker; one that died on the way is replaced."""
        while True:
            busy = {worker.pipe: worker for worker in self.workers if worker.unit is not None}
            worker = busy[wait(list(busy))[0]]  # type: ignore[index]
            reply = self._receive(worker, request, retried)
            if reply is not None:
                return reply

    def _send(self, worker: WorkerHandle, *messages: bytes) -> None:
        # A worker that is dead by now is noticed, and replaced, when its reply is awaited.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for message in messages:
                worker.pipe.send_bytes(message)

    def _receive(self, worker: WorkerHandle, request: Message, retried: set[int]) -> Message | None:
        """The reply of a worker, or None when it died and was replaced."""
        try:
            head = json.loads(worker.pipe.recv_bytes())
            if "error" in head:
                error = RunError(head["error"])
                error.add_note(head["trace"])
                raise error
            reply = receive_message(worker.pipe, worker.outboxes[worker.slot], head)
        except (EOFError, OSError):  # it died while idle, or in the middle of a message
            self._replace(worker, request, retried)
            return None
        worker.written[worker.slot] = reply.unit
        worker.slot, worker.unit = 1 - worker.slot, None
        return reply

    def _replace(self, worker: WorkerHandle, request: Message, retried: set[int]) -> None:
        worker.process.join()
        unit = worker.unit
        assert unit is not None
        reason = exit_reason(worker.process)
        what = f"train, group {unit} of clients" if request.kind == GROUPED else f"{request.kind}, unit {unit}"
        died = f"the worker process of round {request.round}, {what} died ({reason})"
        if unit in retried:
            raise RunError(
                f"Twice, {died}; with fewer --workers or a smaller --batch it needs less memory. "
                "All finished rounds are kept."
            )
        retried.add(unit)
        self.notify(f"{died[0].upper()}{died[1:]}; it was replaced and the unit is done again.")
        worker.pipe.close()
        self._start(worker)
        self._send(worker, *self._announcement, json.dumps({"unit": unit, "slot": worker.slot}).encode())

    def _start(self, worker: WorkerHandle) -> None:
        own_end, worker_end = self._context.Pipe()
        others = [other.pipe for other in self.workers if other is not worker]
        process = self._context.Process(
            target=worker_main,
            args=(
                self.job.on(worker.device),
                worker_end,
                self._inbox,
                worker.outboxes,
                [own_end, *others],
                self.sharing,
            ),
            name=f"fedframe-worker-{len(self.workers)}",
            daemon=True,
        )
        with warnings.catch_warnings(), signals_blocked():
            # Python warns of threads at a fork. The worker touches none of them: it runs one torch thread of its own.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        worker_end.close()
        worker.process, worker.pipe = process, own_end


def exit_reason(process: ForkProcess) -> str:
    """Why a process ended, for people."""
    code = process.exitcode
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return f"{name}: perhaps out of memory" if name == "SIGKILL" else name
    return f"exit code {code}"
