"""Flower's SuperLink behind a guard: nodes reach what is for nodes, and nobody else reaches anything.

Flower serves three interfaces on one port: Fleet (for nodes, which prove who they are with their key), Control (start
runs, register nodes) and Runtime (be a run's server). The last two ask for no password. The guard stands before the
whole application in the same process: whatever is not Fleet is refused unless it comes from this machine *and* carries
the organiser's secret, so a forgotten firewall, another user of the machine or a proxy beside the SuperLink gain
nothing. Flower reads a body before it looks at the key, so a body above a limit is cut off before anything reads it:
a small limit for whoever shows no member's key, a large one for members. Each refusal is a line in the log, Flower's
own (an unknown key) and those of TLS (no TLS, a stranger who does not know this CA) too.

    python -m fedframe.network.flower.superlink SECRET_FILE [options of flower-superlink]

Members' public keys are the *.pub files in the folders beside SECRET_FILE.
"""

from __future__ import annotations

import asyncio.sslproto
import base64
import contextlib
import hmac
import ipaddress
import logging
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

HEADER = "x-fedframe-organiser"
KEY_HEADER = b"flwr-public-key"  # in which nodes show their key
FLEET = "/v1/fleet/"
MOST_BODY = 64 << 20  # bytes of one request: Flower sends large arrays in chunks of 5 MB
MOST_STRANGE = 64 << 10  # bytes of one request without a member's key: enough to be told that it is none
SLOW = 30.0  # seconds for the next piece of a body of a request without a member's key
DATABASE_WAITS = "120000"  # milliseconds for a turn at writing
STRANGER = (401, 403, 412)  # what Flower answers to whoever has no key that it knows
MOST_LINES = 1000  # of refusals in a minute: a flood must not fill the disk
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """Lets nodes to the Fleet interface, and the organiser on this machine to the rest."""

    def __init__(
        self,
        app: App,
        secret: str,
        members: Callable[[bytes], bool],
        most: int = MOST_BODY,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self.app, self.secret, self.members, self.most = app, secret.encode(), members, most
        self.log = log or (lambda text: print(text, flush=True))
        self._minute, self._lines = 0, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it here."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        reason = self.objection(scope)
        if reason is not None:
            self.note(scope, reason)
            await refuse(send, 403)
            return
        most = left = self.limit(scope)
        member = most == self.most

        async def limited() -> MutableMapping[str, Any]:
            nonlocal left
            try:
                event = await asyncio.wait_for(receive(), None if member else SLOW)
            except TimeoutError:
                self.note(scope, f"nothing more of its body in {SLOW:g} seconds")
                return {"type": "http.disconnect"}
            left -= len(event.get("body", b""))
            if left < 0:
                self.note(scope, f"its body is larger than {most:,} bytes")
                return {"type": "http.disconnect"}
            return event

        async def watched(event: MutableMapping[str, Any]) -> None:
            if event["type"] == "http.response.start" and event["status"] in STRANGER:
                self.note(scope, f"Flower answered {event['status']}: no key, or none that may join now")
            await send(event)

        await self.app(scope, limited, watched)

    def objection(self, scope: Scope) -> str | None:
        """Why a request is not let through."""
        if scope["type"] != "http":
            return f"it is {scope['type']}"
        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"0")
        most = self.limit(scope)
        if not declared.isdigit() or len(declared) > 20 or int(declared) > most:
            return f"its body is larger than {most:,} bytes"
        if scope["path"].startswith(FLEET):
            return None
        if not from_here(scope):
            return "only nodes' requests are taken from other machines"
        if not hmac.compare_digest(headers.get(HEADER.encode(), b""), self.secret):
            return "it does not carry the organiser's secret"
        return None

    def limit(self, scope: Scope) -> int:
        """How many bytes a request may have: of nodes only members send much."""
        if scope["path"].startswith(FLEET) and not self.members(dict(scope["headers"]).get(KEY_HEADER, b"")):
            return min(self.most, MOST_STRANGE)
        return self.most

    def note(self, scope: Scope, reason: str) -> None:
        """A line in the log, but no flood of them."""
        minute = int(time.monotonic() // 60)
        self._minute, self._lines = minute, self._lines + 1 if minute == self._minute else 1
        if self._lines <= MOST_LINES:
            where = (scope.get("client") or ("unknown",))[0]
            what = f"{scope.get('method', '')} {scope.get('path', '')[:200]!r}" if "path" in scope else "a connection"
            self.log(f"Refused {what} from {where}: {reason}.")


class Members:
    """Who is a member: the holders of keys in the folders of a folder, as nodes show them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._keys: dict[Path, bytes] = {}

    def __call__(self, shown: bytes) -> bool:
        """Whether a key is a member's; in a trial keys are made after the SuperLink has started."""
        return bool(shown) and (shown in self._keys.values() or shown in self._look().values())

    def _look(self) -> dict[Path, bytes]:
        from cryptography.hazmat.primitives.serialization import load_ssh_public_key
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        for path in set(self.folder.glob("*/*.pub")) - set(self._keys):
            with contextlib.suppress(ValueError):  # it is just being written
                key = load_ssh_public_key(path.read_bytes())
                self._keys[path] = base64.b64encode(public_key_to_bytes(key))  # type: ignore[arg-type]
        return self._keys


def from_here(scope: Scope) -> bool:
    """Whether a request comes from this machine."""
    client = scope.get("client")
    try:
        return client is not None and ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


async def refuse(send: Send, status: int) -> None:
    """Answer with a status and nothing else."""
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def note_failed_handshakes(guard: Guard) -> None:
    """Have connections that speak and never become TLS noted: asyncio drops them without a word."""
    complete = asyncio.sslproto.SSLProtocol._on_handshake_complete

    def noted(self: Any, failure: BaseException | None) -> None:
        if isinstance(failure, ssl.SSLError) and self._transport is not None:
            address = self._transport.get_extra_info("peername")
            guard.note({"client": address}, f"no TLS, or another CA ({' '.join(str(failure).split())[:200]})")
        complete(self, failure)

    asyncio.sslproto.SSLProtocol._on_handshake_complete = noted  # type: ignore[method-assign, assignment]


def sockets(host: str, port: int) -> list[socket.socket]:
    """Where to listen: at the address that nodes dial, and always at the one at which the organiser's own line ends."""
    hosts = [host] if host in ("0.0.0.0", "127.0.0.1") else [host, "127.0.0.1"]
    found = []
    for each in hosts:
        family = socket.AF_INET6 if ":" in each else socket.AF_INET
        found.append(socket.create_server((each, port), family=family, backlog=2048))
    return found


def without_routine(record: logging.LogRecord) -> bool:
    """Whether a line of the log says something: `serve` looks at the list of nodes every few seconds.

    And nodes that are not connected look whether anybody is there.
    """
    text = record.getMessage()
    return "ListNodes" not in text and "list-nodes" not in text and f"HEAD {FLEET} " not in text


def be_patient() -> None:
    """Have the database wait its turn: with large models a turn takes longer than Flower's 5 seconds, and then letters
    are lost."""
    from flwr.supercore import sql_mixin
    from flwr.supercore.constant import SQLITE_PRAGMAS

    patient = {**dict(SQLITE_PRAGMAS), "busy_timeout": DATABASE_WAITS}
    sql_mixin.SQLITE_PRAGMAS = tuple(patient.items())  # type: ignore[attr-defined, assignment]


def main() -> None:
    """Start a SuperLink with the guard before it."""
    from fedframe.network.flower.environment import require_packages

    require_packages("flwr")
    import uvicorn
    from flwr.superlink.cli import flower_superlink
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    from fedframe.network.flower.connection_limiter import ConnectionLimiter, watched, widen

    path = Path(sys.argv.pop(1))
    secret = path.read_text().strip()

    def guarded(app: App, host: str, port: int, **options: Any) -> None:
        guard = Guard(app, secret, Members(path.parent))
        note_failed_handshakes(guard)
        door = ConnectionLimiter(lambda address, reason: guard.note({"client": (address,)}, reason))
        widen()
        for name in ("flwr", "uvicorn.access"):
            logging.getLogger(name).addFilter(without_routine)
        # Behind a proxy uvicorn would believe its word on where a request comes from. asyncio's own loop: only its
        # handshakes can be watched.
        ours = {
            "proxy_headers": False, "server_header": False, "loop": "asyncio", "http": watched(AutoHTTPProtocol, door)
        }  # fmt: skip
        uvicorn.Server(uvicorn.Config(guard, host=host, port=port, **{**options, **ours})).run(sockets(host, port))

    be_patient()
    uvicorn.run = guarded  # type: ignore[assignment]
    flower_superlink()


if __name__ == "__main__":
    main()
