"""The live page of a run, served to this machine alone unless requested otherwise.

Only two things are served, from memory: the page and its data. No path of a request ever reaches the file system.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import socket
import sys
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedframe.errors import DataError, FedframeError, SettingError
from fedframe.report.page.build import examined, page_data
from fedframe.report.page.runs import COMPARISON, Subject, folders_inside, open_runs
from fedframe.report.page.section import finite
from fedframe.report.page.template import render
from fedframe.runs.folder import CLIENT_SCORES, CONFIG, EXAMINATION
from fedframe.runs.round_files import DRIFT, METRICS, SUMMARY
from fedframe.util.version import __version__

WATCHED = (CONFIG, METRICS, DRIFT, SUMMARY, CLIENT_SCORES, EXAMINATION)
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class LivePage:
    """The page's data, gathered again only when a file of the runs has changed."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = list(folders)
        self.lock = threading.Lock()
        self.seen: object = None
        self.data: dict[str, Any] = {}
        self.examination_errors: dict[Path, str] = {}
        self.examining: threading.Thread | None = None

    def now(self) -> dict[str, Any]:
        """The current data."""
        with self.lock:
            files_state = self.files_state()
            if files_state != self.seen:
                try:
                    subject = open_runs(self.folders)
                    self.data = page_data(self.with_errors(subject), live=True)
                    self.examine_later(subject)
                except (DataError, SettingError):  # not begun yet, or being written
                    self.data = self.data or waiting(self.folders)
                self.seen = files_state
            return self.data

    def files_state(self) -> object:
        """A value that changes when a file of the runs does."""
        paths = [path / name for path in self.run_folders() for name in WATCHED]
        paths += [folder / COMPARISON for folder in self.folders]
        found = [(path, path.stat()) for path in paths if path.exists()]
        return [(path, stat.st_mtime_ns, stat.st_size) for path, stat in found], len(self.examination_errors)

    def run_folders(self) -> list[Path]:
        """All run folders, including those inside the folder of a comparison."""
        return [path for folder in self.folders for path in (folder, *folders_inside(folder))]

    def with_errors(self, subject: Subject) -> Subject:
        """The runs, with the reasons why their models could not be examined."""
        for run in subject.runs:
            object.__setattr__(run, "examination_error", self.examination_errors.get(run.path, ""))
        return subject

    def examine_later(self, subject: Subject) -> None:
        """Examine the models of finished runs in a thread, while pages are served."""
        firsts = [group.first for group in subject.groups]  # the runs whose details are shown
        todo = [
            run for run in firsts if run.summary and not run.examination and run.path not in self.examination_errors
        ]
        if not todo or (self.examining is not None and self.examining.is_alive()):
            return

        def look() -> None:
            done = examined(subject, notify=lambda text: None)
            self.examination_errors |= {run.path: run.examination_error for run in done.runs if run.examination_error}

        self.examining = threading.Thread(target=look, daemon=True)
        self.examining.start()


def waiting(folders: Sequence[Path]) -> dict[str, Any]:
    """The page before the run has begun."""
    names = ", ".join(path.as_posix() for path in folders)
    return {
        "title": f"Waiting for {names}",
        "subtitle": "The page fills itself when the run begins.",
        "state": "waiting",
        "live": True,
        "sections": [],
    }


class Handler(BaseHTTPRequestHandler):
    """Answers GET requests for two paths, if their Host header names this server."""

    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version = f"fedframe/{__version__}"
    sys_version = ""
    timeout = 30  # seconds that a connection may hold a thread

    def do_GET(self) -> None:
        """Send the page or its data."""
        if not self.server.is_addressed_by(self.headers.get("Host", "")):
            return self.refuse(HTTPStatus.FORBIDDEN, "This server answers to its own name only.")
        address = self.path.partition("?")[0]
        if address not in ("/", "/data.json"):
            return self.refuse(HTTPStatus.NOT_FOUND, "Here are only / and /data.json.")
        try:
            data = self.server.page.now()
        except FedframeError as error:
            return self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        if address == "/":
            return self.respond(render(data).encode(), "text/html; charset=utf-8")
        body = json.dumps(finite(data)).encode()
        tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
        if self.headers.get("If-None-Match") == tag:
            return self.respond(b"", "application/json", HTTPStatus.NOT_MODIFIED, tag)
        return self.respond(body, "application/json", HTTPStatus.OK, tag)

    def refuse(self, status: HTTPStatus, text: str) -> None:
        """Refuse a request, with a sentence."""
        self.respond((text + "\n").encode(), "text/plain; charset=utf-8", status)

    def respond(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK, tag: str = "") -> None:
        """Send a response."""
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if tag:
            self.send_header("ETag", tag)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a page sends a request every two seconds."""


class PageServer(ThreadingHTTPServer):
    """Serves one live page."""

    daemon_threads = True

    def __init__(self, folders: Sequence[Path], host: str, port: int) -> None:
        self.page = LivePage(folders)
        self.host = host
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as error:
            better = f"try --port {port + 1 if 0 < port < 65535 else 8765}"
            reason = getattr(error, "strerror", None) or str(error)
            here = "" if is_loopback(host) else ", or --host 127.0.0.1"
            raise SettingError(f"Cannot serve on {host}:{port} ({reason}); {better}{here}.") from error

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.server_address[1]}/"

    def server_bind(self) -> None:
        """Bind without a DNS query for this machine's name, unlike the base class."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.host, self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that the browser has closed; other errors are shown."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def is_addressed_by(self, header: str) -> bool:
        """Whether a request names this server.

        With DNS rebinding, a foreign page sends its own domain as the host; numeric addresses cannot be rebound.
        """
        name = header[1:].partition("]")[0] if header.startswith("[") else header.partition(":")[0]
        if name.lower() in {"localhost", self.host.lower()}:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return not is_loopback(self.host) and name.lower() == socket.gethostname().lower()
        return address.is_loopback if is_loopback(self.host) else True


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
