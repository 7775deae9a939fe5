"""Processes that this one starts, each with its own log and ended with its parent, and locks that name a process."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from filelock import FileLock

from fedframe.errors import RunError

START_TIMEOUT = 600.0  # seconds in which a process must listen: on a busy machine another one would start as slowly
GRACE = 5.0  # seconds between SIGTERM and SIGKILL
TAIL_BYTES = 4000  # of a log that are read
TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # colours and the like
NO_ERROR = "uvicorn.error"  # the name of a log that is about anything
MAX_LOG_BYTES = 20 << 20  # bytes of a log above which a new one is begun; one old one is kept


class ChildProcess:
    """A process started by this one, with a log of its own."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.command, self.log = list(command), log
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
            log.replace(log.with_name(f"{log.name}.old"))
        with log.open("ab") as file:
            self._log_start = file.tell()  # what stands before is of an earlier process
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
                start_new_session=True,  # Ctrl-C is for us; we end it in our own order
            )

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def stop(self) -> None:
        """Terminate it, then kill it; what it has started itself ends with it."""
        if self.alive:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)  # its own session: nobody else's processes are in it
        self.process.wait()

    def log_tail(self) -> str:
        """The end of its log so far."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(self._log_start, self.log.stat().st_size - TAIL_BYTES))
                return TERMINAL_CODES.sub("", file.read().decode(errors="replace"))
        except OSError:
            return ""

    def last_error(self) -> str:
        """Why it ended, in one line: its last error with the line after it, or else its last line."""
        lines = [" ".join(line.split()) for line in self.log_tail().splitlines() if line.strip()]
        errors = [number for number, line in enumerate(lines) if "error" in line.replace(NO_ERROR, "").lower()]
        return " ".join(lines[errors[-1] :][:2] if errors else lines[-1:])

    def how_it_ended(self) -> str:
        """How it ended, as part of a sentence; a process that was killed could log no error."""
        code = self.process.poll()
        if code is not None and code < 0:
            memory = ", perhaps by the system because memory ran out" if -code == signal.SIGKILL else ""
            return f"was killed by signal {-code}{memory}"
        error = self.last_error()
        return f"ended: {error}" if error else f"ended with code {code} and printed nothing"


def _die_with_parent() -> None:
    # A parent that is killed cannot end its children.
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def stop_all(children: Sequence[ChildProcess]) -> None:
    """Stop processes; all are terminated first, so that they end side by side."""
    for child in children:
        if child.alive:
            child.process.terminate()
    for child in children:
        child.stop()


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody uses now, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def require_free_port(host: str, port: int) -> None:
    """Refuse a port at which another program listens; one that is about to end is given a moment."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    anywhere = "use --bind 0.0.0.0 (all addresses of this machine) or 127.0.0.1."
    try:
        socket.getaddrinfo(host, port, family)
    except (socket.gaierror, UnicodeError) as error:
        raise RunError(f"bind = {host[:80]!r}: this machine knows no such name or address; {anywhere}") from error
    deadline = time.monotonic() + GRACE
    while True:
        try:
            for each in dict.fromkeys((host, "127.0.0.1")):  # see `superlink.listening_sockets`
                socket.create_server((each, port), family=family if each == host else socket.AF_INET).close()
            return
        except OSError as error:
            if error.errno == errno.EACCES:
                raise RunError(
                    f"Cannot listen at {host}:{port}: {os.strerror(errno.EACCES)}; make the federation with another "
                    "port, such as --port 8443."
                ) from error
            if error.errno != errno.EADDRINUSE:
                why = os.strerror(error.errno) if error.errno is not None else str(error)
                raise RunError(f"Cannot listen at {host}:{port}: {why}; {anywhere}") from error
            if time.monotonic() > deadline:
                raise RunError(
                    f"Another program listens at port {port} of this machine; end it, or make the federation with "
                    f"another port, such as --port {port + 1 if port < 65535 else port - 1}."
                ) from error
            time.sleep(0.2)


def wait_for_port(child: ChildProcess, host: str, port: int, stopping: threading.Event | None = None) -> None:
    """Wait until a process listens, or until `stopping` is set; if it ends instead, the error says why."""
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and not (stopping is not None and stopping.is_set()):
        if not child.alive:
            program = Path(child.command[0]).name
            raise RunError(f"{program} {child.how_it_ended()} (right after its start; see {child.log})")
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
            return
        time.sleep(0.1)
    if stopping is None or not stopping.is_set():
        raise RunError(f"Nothing listens at {host}:{port} after {START_TIMEOUT:g} s; see {child.log}.")


def lock_with_pid(path: Path, timeout: float = 0) -> FileLock:
    """Lock a file that then names this process, until the lock is released or the process ends; `Timeout` if held."""
    lock = FileLock(path, timeout=timeout, thread_local=False)
    lock.acquire()
    path.write_text(str(os.getpid()))
    return lock


def read_pid(path: Path) -> int | None:
    """The process id in a file, if there is one."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
