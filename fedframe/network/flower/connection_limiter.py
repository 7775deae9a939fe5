"""Who may keep a connection to the SuperLink open: a stranger who opens many, or opens one and says nothing, does not
keep others out.

uvicorn counts all connections together, and above its limit turns everybody away, the organiser's own too. Here those
from other machines are counted, in all and by address; and a connection of which no whole request has come in time is
closed, wherever it comes from.
"""

from __future__ import annotations

import asyncio
import asyncio.constants
import contextlib
import ipaddress
from collections import Counter
from collections.abc import Callable
from typing import Any

MOST = 1000  # connections from other machines at a time; every node holds two or three
MOST_EACH = 200  # of one address: nodes of one organisation may share it
FIRST = 20.0  # seconds for the handshake, and as many for the first request
SSL_TIMER = "SSL_HANDSHAKE_TIMEOUT"  # asyncio's own, a minute


class ConnectionLimiter:
    """Counts connections."""

    def __init__(
        self, note: Callable[[str, str], None], most: int = MOST, each: int = MOST_EACH, seconds: float = FIRST
    ) -> None:
        self.note, self.most, self.each, self.seconds = note, most, each, seconds  # note: of an address, what is wrong
        self.open: Counter[str] = Counter()

    def enter(self, address: str) -> bool:
        """Whether one more connection of an address may stay."""
        if self.open.total() >= self.most:
            self.note(address, f"there are {self.most:,} connections already")
            return False
        if self.open[address] >= self.each:
            self.note(address, f"it has {self.each:,} connections already")
            return False
        self.open[address] += 1
        return True

    def leave(self, address: str) -> None:
        """A connection is closed."""
        self.open[address] -= 1
        if self.open[address] <= 0:
            del self.open[address]


def is_loopback(address: str) -> bool:
    """Whether an address is one of this machine's own talks."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def watched(
    protocol: type[Any], door: ConnectionLimiter, exempt: Callable[[str], bool] = is_loopback
) -> type[asyncio.Protocol]:
    """A protocol of uvicorn's whose connections go through a door; those of `exempt` addresses are not counted."""

    class Watched(protocol):  # type: ignore[misc]
        counted: str | None = None
        silent: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            address = str((transport.get_extra_info("peername") or ("unknown",))[0])
            if not exempt(address):
                if not door.enter(address):
                    transport.abort()
                    return
                self.counted = address
            self.silent = asyncio.get_running_loop().call_later(door.seconds, self.close_if_silent, address)

        def close_if_silent(self, address: str) -> None:
            if self.cycle is None:  # uvicorn's word for a request and its answer
                door.note(address, f"no request in {door.seconds:g} seconds")
                self.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            if self.silent is not None:
                self.silent.cancel()
            if self.counted is not None:
                door.leave(self.counted)
                self.counted = None
            super().connection_lost(exc)

    return Watched


def widen() -> None:
    """Short patience with handshakes, and as many open files as the system allows: connections are files."""
    setattr(asyncio.constants, SSL_TIMER, FIRST)
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
