"""Flower's SuperLink behind a guard: nodes reach what is for nodes, and all others are refused.

Flower serves three interfaces on one port: Fleet (for nodes, which prove who they are with their key), Control (start
runs, register nodes) and Runtime (be a run's server). The last two ask for no password. The guard wraps the whole
application in the same process: whatever is not Fleet is refused unless it comes from this machine *and* carries the
organiser's secret, so a forgotten firewall, another user of the machine or a proxy beside the SuperLink opens nothing.
Flower reads a body before it checks the key, so a body above a limit is cut off before anything reads it: a small limit
for requests without a member's key, a large one for members. Each refusal is a line in the log, also Flower's own (an
unknown key) and those of TLS (no TLS, or another CA).

    python -m fedframe.network.flower.superlink SECRET_FILE [options of flower-superlink]

Members' public keys are the *.pub files in the folders beside SECRET_FILE.
"""

from __future__ import annotations

import asyncio.sslproto
import base64
import contextlib
import hmac
import logging
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from fedframe.network.flower.connection_limiter import (
    ConnectionLimiter,
    is_loopback,
    limited_protocol,
    set_process_limits,
)

HEADER = "x-fedframe-organiser"
KEY_HEADER = b"flwr-public-key"  # in which nodes send their key
FLEET = "/v1/fleet/"
MAX_BODY_BYTES = 64 << 20  # bytes of one request: Flower sends large arrays in chunks of 5 MB
MAX_STRANGER_BYTES = 64 << 10  # bytes of one request without a member's key: enough to be refused as that
BODY_TIMEOUT = 30.0  # seconds for the next piece of a body of a request without a member's key
DATABASE_TIMEOUT = "120000"  # milliseconds for a turn at writing
REFUSED_STATUSES = (401, 403, 412)  # what Flower answers to those whose key it does not know
MAX_LOG_LINES = 1000  # of refusals in a minute: a flood must not fill the disk
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """Admits nodes to the Fleet interface, and the organiser on this machine to the rest."""

    def __init__(
        self,
        app: App,
        secret: str,
        members: Callable[[bytes], bool],
        max_body: int = MAX_BODY_BYTES,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self.app, self.secret, self.members, self.max_body = app, secret.encode(), members, max_body
        self.log = log or (lambda text: print(text, flush=True))
        self._minute, self._lines = 0, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it here."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        reason = self.refusal_reason(scope)
        if reason is not None:
            self.log_refusal(scope, reason)
            await refuse(send, 403)
            return
        limit = left = self.body_limit(scope)
        member = limit == self.max_body

        async def limited_receive() -> MutableMapping[str, Any]:
            nonlocal left
            try:
                event = await asyncio.wait_for(receive(), None if member else BODY_TIMEOUT)
            except TimeoutError:
                self.log_refusal(scope, f"nothing more of its body in {BODY_TIMEOUT:g} seconds")
                return {"type": "http.disconnect"}
            left -= len(event.get("body", b""))
            if left < 0:
                self.log_refusal(scope, f"its body is larger than {limit:,} bytes")
                return {"type": "http.disconnect"}
            return event

        async def logged_send(event: MutableMapping[str, Any]) -> None:
            if event["type"] == "http.response.start" and event["status"] in REFUSED_STATUSES:
                self.log_refusal(scope, f"Flower answered {event['status']}: no key, or none that may join now")
            await send(event)

        await self.app(scope, limited_receive, logged_send)

    def refusal_reason(self, scope: Scope) -> str | None:
        """Why a request is refused; None if it is not."""
        if scope["type"] != "http":
            return f"it is {scope['type']}"
        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"0")
        limit = self.body_limit(scope)
        if not declared.isdigit() or len(declared) > 20 or int(declared) > limit:
            return f"its body is larger than {limit:,} bytes"
        if scope["path"].startswith(FLEET):
            return None
        if not is_loopback(client_address(scope)):
            return "only nodes' requests are taken from other machines"
        if not hmac.compare_digest(headers.get(HEADER.encode(), b""), self.secret):
            return "it does not carry the organiser's secret"
        return None

    def body_limit(self, scope: Scope) -> int:
        """How many bytes a request may have: of nodes only members send much."""
        if scope["path"].startswith(FLEET) and not self.members(dict(scope["headers"]).get(KEY_HEADER, b"")):
            return min(self.max_body, MAX_STRANGER_BYTES)
        return self.max_body

    def log_refusal(self, scope: Scope, reason: str) -> None:
        """Write a line in the log, but no flood of them."""
        minute = int(time.monotonic() // 60)
        self._minute, self._lines = minute, self._lines + 1 if minute == self._minute else 1
        if self._lines <= MAX_LOG_LINES:
            what = f"{scope.get('method', '')} {scope.get('path', '')[:200]!r}" if "path" in scope else "a connection"
            self.log(f"Refused {what} from {client_address(scope)}: {reason}.")


class Members:
    """Recognises members by their public keys, which lie in the folders of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._keys: dict[Path, bytes] = {}

    def __call__(self, key: bytes) -> bool:
        """Whether a key is a member's; in a local deployment keys are made after the SuperLink has started."""
        return bool(key) and (key in self._keys.values() or key in self._read_keys().values())

    def _read_keys(self) -> dict[Path, bytes]:
        from cryptography.hazmat.primitives.serialization import load_ssh_public_key
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        for path in set(self.folder.glob("*/*.pub")) - set(self._keys):
            with contextlib.suppress(ValueError):  # it is just being written
                key = load_ssh_public_key(path.read_bytes())
                self._keys[path] = base64.b64encode(public_key_to_bytes(key))  # type: ignore[arg-type]
        return self._keys


def client_address(scope: Scope) -> str:
    """The address that a request comes from."""
    return str((scope.get("client") or ("unknown",))[0])


async def refuse(send: Send, status: int) -> None:
    """Respond with a status and nothing else."""
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def log_failed_handshakes(guard: Guard) -> None:
    """Log connections that never become TLS, which asyncio drops silently."""
    complete = asyncio.sslproto.SSLProtocol._on_handshake_complete

    def logged(self: Any, failure: BaseException | None) -> None:
        if isinstance(failure, ssl.SSLError) and self._transport is not None:
            address = self._transport.get_extra_info("peername")
            guard.log_refusal({"client": address}, f"no TLS, or another CA ({' '.join(str(failure).split())[:200]})")
        complete(self, failure)

    asyncio.sslproto.SSLProtocol._on_handshake_complete = logged  # type: ignore[method-assign, assignment]


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """Sockets at the address that nodes dial, and always at the one that the organiser dials on this machine."""
    hosts = [host] if host in ("0.0.0.0", "127.0.0.1") else [host, "127.0.0.1"]
    found = []
    for each in hosts:
        family = socket.AF_INET6 if ":" in each else socket.AF_INET
        found.append(socket.create_server((each, port), family=family, backlog=2048))
    return found


def is_worth_logging(record: logging.LogRecord) -> bool:
    """Whether a line of the log is not routine: `serve` lists the nodes every few seconds, and nodes without a
    connection try the address.
    """
    text = record.getMessage()
    return "ListNodes" not in text and "list-nodes" not in text and f"HEAD {FLEET} " not in text


def extend_database_timeout() -> None:
    """Have the database wait its turn: with large models a turn takes longer than Flower's 5 seconds, and then messages
    are lost.
    """
    from flwr.supercore import sql_mixin
    from flwr.supercore.constant import SQLITE_PRAGMAS

    patient = {**dict(SQLITE_PRAGMAS), "busy_timeout": DATABASE_TIMEOUT}
    sql_mixin.SQLITE_PRAGMAS = tuple(patient.items())  # type: ignore[attr-defined, assignment]


def main() -> None:
    """Start a SuperLink behind the guard."""
    from fedframe.network.flower.environment import require_packages

    require_packages("flwr")
    import uvicorn
    from flwr.superlink.cli import flower_superlink
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    path = Path(sys.argv.pop(1))
    secret = path.read_text().strip()

    def guarded(app: App, host: str, port: int, **options: Any) -> None:
        guard = Guard(app, secret, Members(path.parent))
        log_failed_handshakes(guard)
        limiter = ConnectionLimiter(lambda address, reason: guard.log_refusal({"client": (address,)}, reason))
        set_process_limits()
        for name in ("flwr", "uvicorn.access"):
            logging.getLogger(name).addFilter(is_worth_logging)
        # Behind a proxy uvicorn would trust its header on where a request comes from. asyncio's own loop: only its
        # handshakes can be logged.
        ours = {
            "proxy_headers": False,
            "server_header": False,
            "loop": "asyncio",
            "http": limited_protocol(AutoHTTPProtocol, limiter),
        }
        config = uvicorn.Config(guard, host=host, port=port, **{**options, **ours})
        uvicorn.Server(config).run(listening_sockets(host, port))

    extend_database_timeout()
    uvicorn.run = guarded  # type: ignore[assignment]
    flower_superlink()


if __name__ == "__main__":
    main()
