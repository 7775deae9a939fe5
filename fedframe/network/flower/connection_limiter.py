"""Limits who may keep a connection to the SuperLink open, so that a stranger who opens many, or opens one and sends
nothing, does not keep others out.

uvicorn counts all connections together, and above its limit turns everybody away, the organiser's own too. Here those
from other machines are counted, in all and by address; and a connection of which no complete request has come in time
is closed, wherever it comes from.
"""

from __future__ import annotations

import asyncio
import asyncio.constants
import contextlib
import ipaddress
from collections import Counter
from collections.abc import Callable
from typing import Any

MAX_CONNECTIONS = 1000  # from other machines at a time; every node holds two or three
MAX_PER_ADDRESS = 200  # nodes of one organisation may share an address
FIRST_REQUEST_SECONDS = 20.0  # for the handshake, and as many for the first request
SSL_TIMER = "SSL_HANDSHAKE_TIMEOUT"  # asyncio's own, a minute


class ConnectionLimiter:
    """Counts connections."""

    def __init__(
        self,
        log: Callable[[str, str], None],
        most: int = MAX_CONNECTIONS,
        each: int = MAX_PER_ADDRESS,
        seconds: float = FIRST_REQUEST_SECONDS,
    ) -> None:
        self.log, self.most, self.each, self.seconds = log, most, each, seconds  # log: of an address, what is wrong
        self.open: Counter[str] = Counter()

    def admit(self, address: str) -> bool:
        """Whether one more connection of an address may stay."""
        if self.open.total() >= self.most:
            self.log(address, f"there are {self.most:,} connections already")
            return False
        if self.open[address] >= self.each:
            self.log(address, f"it has {self.each:,} connections already")
            return False
        self.open[address] += 1
        return True

    def release(self, address: str) -> None:
        """Count a connection as closed."""
        self.open[address] -= 1
        if self.open[address] <= 0:
            del self.open[address]


def is_loopback(address: str) -> bool:
    """Whether an address is one of this machine's own."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def limited_protocol(
    protocol: type[Any], limiter: ConnectionLimiter, exempt: Callable[[str], bool] = is_loopback
) -> type[asyncio.Protocol]:
    """A protocol of uvicorn's whose connections are limited; those of `exempt` addresses are not counted."""

    class LimitedProtocol(protocol):  # type: ignore[misc]
        counted_address: str | None = None
        silence_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            address = str((transport.get_extra_info("peername") or ("unknown",))[0])
            if not exempt(address):
                if not limiter.admit(address):
                    transport.abort()
                    return
                self.counted_address = address
            loop = asyncio.get_running_loop()
            self.silence_timer = loop.call_later(limiter.seconds, self.close_if_silent, address)

        def close_if_silent(self, address: str) -> None:
            if self.cycle is None:  # what uvicorn calls a request and its response
                limiter.log(address, f"no request in {limiter.seconds:g} seconds")
                self.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            if self.silence_timer is not None:
                self.silence_timer.cancel()
            if self.counted_address is not None:
                limiter.release(self.counted_address)
                self.counted_address = None
            super().connection_lost(exc)

    return LimitedProtocol


def set_process_limits() -> None:
    """Shorten the handshake timeout, and allow as many open files as the system does: connections are files."""
    setattr(asyncio.constants, SSL_TIMER, FIRST_REQUEST_SECONDS)
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
