"""Flower's SuperLink behind a guard: nodes reach what is for nodes, and nobody else reaches anything.

Flower serves three interfaces on one port: Fleet (for nodes, which prove who they are with their key), Control (start
runs, register nodes) and Runtime (be a run's server). The last two ask for no password. The guard stands before the
whole application in the same process: whatever is not Fleet is refused unless it comes from this machine *and* carries
the organiser's secret, so a forgotten firewall, another user of the machine or a proxy beside the SuperLink gain
nothing. Bodies above a limit are cut off before anything reads them. Each refusal is a line in the log.

    python -m fedframe.engines.flower.superlink SECRET_FILE [options of flower-superlink]
"""

from __future__ import annotations

import hmac
import ipaddress
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

HEADER = "x-fedframe-organiser"
FLEET = "/v1/fleet/"
MOST_BODY = 256 << 20  # bytes of one request: Flower sends large arrays in chunks that are far smaller
MOST_LINES = 1000  # of refusals in a minute: a flood must not fill the disk
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """Lets nodes to the Fleet interface, and the organiser on this machine to the rest."""

    def __init__(self, app: App, secret: str, most: int = MOST_BODY, log: Callable[[str], None] | None = None) -> None:
        self.app, self.secret, self.most = app, secret.encode(), most
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
        left = self.most

        async def limited() -> MutableMapping[str, Any]:
            nonlocal left
            event = await receive()
            left -= len(event.get("body", b""))
            if left < 0:
                self.note(scope, f"its body is larger than {self.most:,} bytes")
                return {"type": "http.disconnect"}
            return event

        await self.app(scope, limited, send)

    def objection(self, scope: Scope) -> str | None:
        """Why a request is not let through."""
        if scope["type"] != "http":
            return f"it is {scope['type']}"
        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > self.most:
            return f"its body is larger than {self.most:,} bytes"
        if scope["path"].startswith(FLEET):
            return None
        if not from_here(scope):
            return "only nodes' requests are taken from other machines"
        if not hmac.compare_digest(headers.get(HEADER.encode(), b""), self.secret):
            return "it does not carry the organiser's secret"
        return None

    def note(self, scope: Scope, reason: str) -> None:
        """A line in the log, but no flood of them."""
        minute = int(time.monotonic() // 60)
        self._minute, self._lines = minute, self._lines + 1 if minute == self._minute else 1
        if self._lines <= MOST_LINES:
            where = (scope.get("client") or ("unknown",))[0]
            self.log(f"Refused {scope.get('method', '')} {scope.get('path', '')[:200]!r} from {where}: {reason}.")


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


def main() -> None:
    """Start a SuperLink with the guard before it."""
    from fedframe.engines.flower.calm import need

    need("flwr")
    import uvicorn
    from flwr.superlink.cli import flower_superlink

    secret = Path(sys.argv.pop(1)).read_text().strip()
    serve = uvicorn.run

    def guarded(app: App, **options: Any) -> None:
        # Behind a proxy uvicorn would believe its word on where a request comes from.
        serve(Guard(app, secret), **{**options, "proxy_headers": False, "server_header": False})

    uvicorn.run = guarded  # type: ignore[assignment]
    flower_superlink()


if __name__ == "__main__":
    main()
