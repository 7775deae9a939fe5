"""Processes that this one starts and must end: each writes to a log of its own and dies with its parent."""

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

from fedframe.errors import RunError

START = 600.0  # seconds in which a process must listen: on a busy machine a new one would only start as slowly again
GRACE = 5.0  # seconds between a polite end and a hard one
TAIL = 4000  # bytes of a log that are looked at
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # and whatever else a terminal is told
NO_ERROR = "uvicorn.error"  # the name of a log that is about anything
MOST_LOG = 20 << 20  # bytes of a log above which a new one is begun; one old one is kept


class Child:
    """One process, known by its id."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.command, self.log = list(command), log
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists() and log.stat().st_size > MOST_LOG:
            log.replace(log.with_name(f"{log.name}.old"))
        with log.open("ab") as file:
            self._begins = file.tell()  # what stands before is of an earlier life
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
        """Its id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None

    def end(self) -> None:
        """End it politely, then hard; what it has started itself ends with it."""
        if self.alive:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)  # its own session: nobody else's processes are in it
        self.process.wait()

    def said(self) -> str:
        """The end of what it has written so far."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(self._begins, self.log.stat().st_size - TAIL))
                return COLOURS.sub("", file.read().decode(errors="replace"))
        except OSError:
            return ""

    def last_words(self) -> str:
        """Why it ended, in one line: its last error with the line after it, or else its last line."""
        lines = [" ".join(line.split()) for line in self.said().splitlines() if line.strip()]
        errors = [number for number, line in enumerate(lines) if "error" in line.replace(NO_ERROR, "").lower()]
        return " ".join(lines[errors[-1] :][:2] if errors else lines[-1:])

    def ending(self) -> str:
        """How it ended, as part of a sentence; a process that was killed had no last words."""
        code = self.process.poll()
        if code is not None and code < 0:
            memory = ", perhaps by the system for want of memory" if -code == signal.SIGKILL else ""
            return f"was killed by signal {-code}{memory}"
        words = self.last_words()
        return f"ended: {words}" if words else f"ended with code {code}, without a word"


def _die_with_parent() -> None:
    # A parent that is killed cannot end its children.
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def end_all(children: Sequence[Child]) -> None:
    """End processes, all politely first, so that they end side by side."""
    for child in children:
        if child.alive:
            child.process.terminate()
    for child in children:
        child.end()


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


def need_port(host: str, port: int) -> None:
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
            for each in dict.fromkeys((host, "127.0.0.1")):  # see `superlink.sockets`
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


def wait_for_port(child: Child, host: str, port: int, over: threading.Event | None = None) -> None:
    """Wait until a process listens, or until `over` is set; say what it said if it ends instead."""
    deadline = time.monotonic() + START
    while time.monotonic() < deadline and not (over is not None and over.is_set()):
        if not child.alive:
            raise RunError(f"{Path(child.command[0]).name} {child.ending()} (right after its start; see {child.log})")
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
            return
        time.sleep(0.1)
    if over is None or not over.is_set():
        raise RunError(f"Nothing listens at {host}:{port} after {START:g} s; see {child.log}.")
