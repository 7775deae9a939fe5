"""A worker process: performs requests from a pipe with its own `ClientRuntime`, puts replies into shared memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from fedframe.core.client_runtime import ClientRuntime
from fedframe.core.job import Job
from fedframe.core.message import Message
from fedframe.engines.placement import place_data
from fedframe.engines.shared_memory import Slab
from fedframe.errors import FedframeError

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def send_message(pipe: Connection, slab: Slab, message: Message, **more: Any) -> None:
    """Send a message: its head through the pipe, its tensors through shared memory if they fit there."""
    specs = slab.write(message.tensors)
    pipe.send_bytes(json.dumps({**more, "message": message.head(), "specs": specs}).encode())
    if specs is None:
        pipe.send_bytes(message.to_bytes())


def receive_message(pipe: Connection, slab: Slab, head: dict[str, Any]) -> Message:
    """The message whose head has just come through the pipe; its tensors are valid until the next one."""
    if head["specs"] is None:
        return Message.from_bytes(pipe.recv_bytes())
    return Message(tensors=slab.read(head["specs"]), **head["message"])


def worker_main(
    job: Job,
    pipe: Connection,
    inbox: Slab,
    outboxes: Sequence[Slab],
    others: Sequence[Connection],
    sharing: int = 1,  # processes on this one's device
) -> None:
    """Perform requests until the pipe says stop or closes."""
    for connection in others:
        connection.close()  # inherited ends of other pipes would keep them open after their owner's death
    prepare_process()
    runtime: ClientRuntime | None = None
    request = Message("none", 0)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            head = json.loads(pipe.recv_bytes())
            if "message" in head:
                request = receive_message(pipe, inbox, head)
            elif "unit" in head:
                runtime = reply_for(
                    runtime or job, request, int(head["unit"]), pipe, outboxes[int(head["slot"])], sharing
                )
            else:
                break
    # Skip the parent's exit handlers and buffers, which a forked child inherits but must not run.
    os._exit(0)


def reply_for(
    given: ClientRuntime | Job, request: Message, unit: int, pipe: Connection, outbox: Slab, sharing: int = 1
) -> ClientRuntime | None:
    """Perform a request for one unit and send the reply, or what went wrong; returns the runtime for the next unit."""
    try:
        runtime = given if isinstance(given, ClientRuntime) else ClientRuntime(place_data(given, sharing))
        send_message(pipe, outbox, runtime.perform(request, unit), unit=unit)
        return runtime
    except OSError:
        raise  # the parent is gone
    except Exception as error:
        text = str(error) if isinstance(error, FedframeError) else f"{type(error).__name__}: {error}"
        trace = "".join(traceback.format_exception(error))
        pipe.send_bytes(json.dumps({"unit": unit, "error": text, "trace": trace}).encode())
        return None


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Hold back signals that stop this process during a fork, which would end in a traceback of the child."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def prepare_process() -> None:
    """Set up a worker: one torch thread, Ctrl-C left to the parent, death with the parent, freed memory kept."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # see stops_held
    torch.set_num_threads(1)
    gc.freeze()  # the parent's objects are not collected here: touching them would copy their pages
    with contextlib.suppress(OSError, AttributeError):
        # By default large blocks go back to the system on every free and are faulted in again, zeroed, on every batch:
        # a tenth to a fifth of the time of a small convolutional net.
        m_trim_threshold, m_mmap_threshold = -1, -3
        libc = ctypes.CDLL(None)
        libc.mallopt(m_mmap_threshold, 1 << 30)
        libc.mallopt(m_trim_threshold, 1 << 30)
    with contextlib.suppress(OSError, AttributeError):
        # The closed pipe would show it too, but only after the current client, whose private state would be written
        # into a folder that a resumed run may be using by then.
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def release_free_memory() -> None:
    """Give memory that loading the data has left free back to the system, so that workers do not inherit it."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
