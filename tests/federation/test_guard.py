"""The guard before the SuperLink: who may reach what, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from fedframe.engines.flower.superlink import HEADER, MOST_LINES, Guard

SECRET = "open sesame"


class Inside:
    """The application behind the guard: reads the whole body and says what it saw."""

    def __init__(self) -> None:
        self.bodies: list[bytes | None] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                self.bodies.append(None)
                return
            body += event["body"]
            if not event.get("more_body"):
                break
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": []})


def ask(path: str, client: str, headers: dict[str, str], pieces: tuple[bytes, ...] = (b"",), most: int = 100) -> Any:
    inside, lines = Inside(), list[str]()
    sent: list[MutableMapping[str, Any]] = []
    left = list(pieces)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(event: MutableMapping[str, Any]) -> None:
        sent.append(event)

    given = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": path, "client": (client, 1), "headers": given}
    asyncio.run(Guard(inside, SECRET, most, lines.append)(scope, receive, send))
    return (sent[0]["status"] if sent else None), inside.bodies, lines


def test_nodes_reach_the_fleet_interface_from_anywhere() -> None:
    status, bodies, lines = ask("/v1/fleet/pull-messages", "203.0.113.9", {}, (b"ab", b"c"))
    assert (status, bodies, lines) == (200, [b"abc"], [])


@pytest.mark.parametrize(
    "path", ["/v1/control/start-run", "/v1/runtime/acquire-task", "/", "/v1/fleet", "/v1//fleet/x"]
)
@pytest.mark.parametrize(
    ("client", "headers"),
    [("203.0.113.9", {HEADER: SECRET}), ("127.0.0.1", {}), ("127.0.0.1", {HEADER: "open"}), ("not an address", {})],
)
def test_nobody_else_reaches_anything(path: str, client: str, headers: dict[str, str]) -> None:
    status, bodies, lines = ask(path, client, headers)
    assert (status, bodies) == (403, [])
    assert len(lines) == 1
    assert client in lines[0]


@pytest.mark.parametrize("client", ["127.0.0.1", "::1"])
def test_the_organiser_reaches_all_with_the_secret_from_this_machine(client: str) -> None:
    assert ask("/v1/control/start-run", client, {HEADER: SECRET})[:2] == (200, [b""])


def test_a_body_that_says_it_is_too_large_is_not_read() -> None:
    status, bodies, _ = ask("/v1/fleet/push-object", "203.0.113.9", {"content-length": "101"})
    assert (status, bodies) == (403, [])


def test_a_body_that_turns_out_too_large_is_cut_off() -> None:
    _, bodies, lines = ask("/v1/fleet/push-object", "203.0.113.9", {}, (b"x" * 60, b"x" * 60, b"x"))
    assert bodies == [None]
    assert len(lines) == 1


def test_a_flood_of_strangers_does_not_flood_the_log() -> None:
    lines: list[str] = []
    guard = Guard(Inside(), SECRET, log=lines.append)
    for _ in range(3 * MOST_LINES):
        guard.note({"path": "/"}, "no")
    assert MOST_LINES <= len(lines) <= 2 * MOST_LINES  # a minute may end in between
