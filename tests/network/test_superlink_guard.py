"""The guard before the SuperLink: who may reach what, without a network."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

pytest.importorskip("uvicorn")

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from fedframe.network.certificates import make_certificates, make_node_key
from fedframe.network.flower import superlink
from fedframe.network.flower.connection_limiter import ConnectionLimiter, limited_protocol
from fedframe.network.flower.superlink import HEADER, MAX_LOG_LINES, MAX_STRANGER_BYTES, Guard, Members
from fedframe.util.processes import free_ports
from tests.federation.commands import LONG, until

SECRET = "open sesame"
KEY = "of a member"
MEMBER = {"flwr-public-key": KEY}


def known(shown: bytes) -> bool:
    return shown == KEY.encode()


class Inside:
    """The application behind the guard: reads the whole body and says what it saw."""

    def __init__(self, status: int = 200) -> None:
        self.bodies: list[bytes | None] = []
        self.status = status

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
        await send({"type": "http.response.start", "status": self.status, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


def ask(
    path: str,
    client: str,
    headers: dict[str, str],
    pieces: tuple[bytes, ...] = (b"",),
    most: int = 100,
    status: int = 200,
) -> Any:
    inside, lines = Inside(status), list[str]()
    sent: list[MutableMapping[str, Any]] = []
    left = list(pieces)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(event: MutableMapping[str, Any]) -> None:
        sent.append(event)

    given = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": path, "client": (client, 1), "headers": given}
    asyncio.run(Guard(inside, SECRET, known, most, lines.append)(scope, receive, send))
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
    for declared in ("101", "1" * 5000, "-1", "x"):
        status, bodies, _ = ask("/v1/fleet/push-object", "203.0.113.9", {**MEMBER, "content-length": declared})
        assert (status, bodies) == (403, [])


def test_a_body_that_turns_out_too_large_is_cut_off() -> None:
    _, bodies, lines = ask("/v1/fleet/push-object", "203.0.113.9", MEMBER, (b"x" * 60, b"x" * 60, b"x"))
    assert bodies == [None]
    assert len(lines) == 1


@pytest.mark.parametrize("headers", [{}, {"flwr-public-key": "of a stranger"}, {HEADER: SECRET}])
def test_whoever_shows_no_members_key_is_not_listened_to_for_long(headers: dict[str, str]) -> None:
    large, path = MAX_STRANGER_BYTES + 1, "/v1/fleet/push-object"
    assert ask(path, "203.0.113.9", headers, (b"x" * 100,), most=1 << 20)[:2] == (200, [b"x" * 100])
    status, bodies, lines = ask(path, "203.0.113.9", {**headers, "content-length": str(large)}, most=1 << 20)
    assert (status, bodies, len(lines)) == (403, [], 1)
    assert f"larger than {MAX_STRANGER_BYTES:,}" in lines[0]
    assert ask(path, "203.0.113.9", headers, (b"x" * large, b""), most=1 << 20)[1] == [None]
    assert ask(path, "203.0.113.9", MEMBER, (b"x" * large, b""), most=1 << 20)[:2] == (200, [b"x" * large])


def test_members_are_those_whose_keys_lie_in_the_folder(tmp_path: Path) -> None:
    flower = pytest.importorskip("flwr.supercore.primitives.asymmetric")
    ssh = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    members = Members(tmp_path)
    assert not members(b"")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "written.pub").write_bytes(b"ecdsa-sha2-nistp384 AAAA")
    for place in ("nodes/north", "west/node"):  # of a federation, of a local deployment; made after the guard
        path = tmp_path / f"{place}.pub"
        path.parent.mkdir()
        make_node_key(tmp_path / f"{place}.key", path)
        shown = base64.b64encode(flower.public_key_to_bytes(ssh.load_ssh_public_key(path.read_bytes())))
        assert members(shown)
        assert not members(shown[:-4])


def test_a_flood_of_strangers_does_not_flood_the_log() -> None:
    lines: list[str] = []
    guard = Guard(Inside(), SECRET, known, log=lines.append)
    for _ in range(3 * MAX_LOG_LINES):
        guard.log_refusal({"path": "/"}, "no")
    assert MAX_LOG_LINES <= len(lines) <= 2 * MAX_LOG_LINES  # a minute may end in between


@pytest.mark.parametrize(("status", "lines"), [(412, 1), (401, 1), (200, 0), (404, 0)])
def test_a_key_that_flower_does_not_know_is_a_line_in_the_log(status: int, lines: int) -> None:
    found = ask("/v1/fleet/activate-node", "203.0.113.9", {}, status=status)
    assert found[0] == status
    assert len(found[2]) == lines
    assert all("/v1/fleet/activate-node" in line and "203.0.113.9" in line for line in found[2])


# -- over TLS, in this process -----------------------------------------------------------------------------------------
Served = tuple[int, Path, list[str]]


@contextlib.contextmanager
def listening(config: uvicorn.Config, host: str) -> Iterator[int]:
    """A server in a thread, as the SuperLink has it; the port at which it listens."""
    server = uvicorn.Server(config)
    (port,) = free_ports(1)
    thread = threading.Thread(target=server.run, args=(superlink.listening_sockets(host, port),), daemon=True)
    thread.start()
    until("the server listens", lambda: server.started or not thread.is_alive())
    assert server.started
    yield port
    server.should_exit = True
    thread.join(LONG)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A guard that listens at another address than the organiser's line dials."""
    complete = asyncio.sslproto.SSLProtocol._on_handshake_complete
    monkeypatch.setattr(asyncio.sslproto.SSLProtocol, "_on_handshake_complete", complete)  # is put back afterwards
    make_certificates(tmp_path, ["127.0.0.2"], "this")
    lines: list[str] = []
    guard = Guard(Inside(), SECRET, known, log=lines.append)
    superlink.log_failed_handshakes(guard)
    config = uvicorn.Config(
        guard, loop="asyncio", lifespan="off", ws="none", log_level="critical",
        ssl_keyfile=str(tmp_path / "server.key"), ssl_certfile=str(tmp_path / "server.pem"),
    )  # fmt: skip
    with listening(config, "127.0.0.2") as port:
        yield port, tmp_path, lines


def post(url: str, folder: Path) -> int:
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    return httpx.post(url, verify=context, headers={HEADER: SECRET}, trust_env=False, timeout=LONG).status_code


@pytest.mark.slow
def test_the_organisers_line_is_there_whatever_address_nodes_dial(served: Served) -> None:
    port, folder, lines = served
    assert post(f"https://127.0.0.1:{port}/v1/control/list-nodes", folder) == 200
    assert post(f"https://127.0.0.2:{port}/v1/fleet/x", folder) == 200
    socket.create_connection(("127.0.0.1", port)).close()  # a connection that sends nothing is no stranger
    assert post(f"https://127.0.0.1:{port}/v1/control/list-nodes", folder) == 200  # it has been dealt with by now
    assert lines == []


@pytest.mark.slow
def test_whoever_speaks_no_tls_or_knows_another_ca_gains_nothing_and_is_a_line(served: Served, tmp_path: Path) -> None:
    port, folder, lines = served
    with pytest.raises(httpx.HTTPError):
        post(f"http://127.0.0.2:{port}/v1/fleet/x", folder)
    make_certificates(tmp_path / "other", ["127.0.0.2"], "another")
    with pytest.raises(httpx.ConnectError, match="certificate"):
        post(f"https://127.0.0.2:{port}/v1/fleet/x", tmp_path / "other")
    until("both are refused", lambda: len(lines) >= 2)
    assert [line.partition(": no TLS")[0] for line in lines] == ["Refused a connection from 127.0.0.1"] * 2


# -- connections -------------------------------------------------------------------------------------------------------
class Recording(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's protocol, whose instances a test can reach."""

    made: ClassVar[list[Any]] = []

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.made.append(self)


def connect(port: int, folder: Path) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    plain = socket.create_connection(("127.0.0.1", port), timeout=LONG)
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


def is_closed(connection: ssl.SSLSocket) -> bool:
    """Whether the server closes a connection; waits for it."""
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


Limited = tuple[int, Path, ConnectionLimiter, list[str]]


@pytest.fixture
def limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Limited]:
    """A guard that admits three connections of one address, and exempts nobody; silent ones may stay for long."""
    make_certificates(tmp_path, ["127.0.0.1"], "this")
    lines: list[str] = []
    limiter = ConnectionLimiter(
        lambda address, reason: lines.append(f"{address}: {reason}"), most=10, each=3, seconds=LONG
    )
    monkeypatch.setattr(Recording, "made", [])
    config = uvicorn.Config(
        Guard(Inside(), SECRET, known), loop="asyncio", lifespan="off", ws="none", log_level="critical",
        http=limited_protocol(Recording, limiter, exempt=lambda address: False),
        ssl_keyfile=str(tmp_path / "server.key"), ssl_certfile=str(tmp_path / "server.pem"),
    )  # fmt: skip
    with listening(config, "127.0.0.1") as port:
        yield port, tmp_path, limiter, lines


@pytest.mark.slow
def test_many_connections_of_one_address_are_not_let_in_and_silent_ones_are_closed(limited: Limited) -> None:
    port, folder, limiter, lines = limited
    silent = [connect(port, folder) for _ in range(3)]
    until("all are counted", lambda: limiter.open.total() == 3)
    assert is_closed(connect(port, folder))
    assert lines == ["127.0.0.1: it has 3 connections already"]
    for each in silent:
        each.close()
    until("they are gone", lambda: not limiter.open)
    limiter.seconds = 0.2
    assert is_closed(connect(port, folder))
    assert lines[1:] == ["127.0.0.1: no request in 0.2 seconds"]
    until("it is gone", lambda: not limiter.open)
    limiter.seconds = LONG
    assert post(f"https://127.0.0.1:{port}/v1/fleet/x", folder) == 200


@pytest.mark.slow
def test_a_connection_that_has_asked_something_stays(limited: Limited) -> None:
    port, folder, _, lines = limited
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    with httpx.Client(verify=context, trust_env=False, timeout=LONG) as client:
        for _ in range(3):
            assert client.post(f"https://127.0.0.1:{port}/v1/fleet/x").status_code == 200
            (connection,) = Recording.made
            checked = threading.Event()
            connection.loop.call_soon_threadsafe(connection.close_if_silent, "127.0.0.1")  # as its timer would
            connection.loop.call_soon_threadsafe(checked.set)
            assert checked.wait(LONG)
    assert lines == []


def test_the_limiter_counts_all_and_each() -> None:
    lines: list[str] = []
    limiter = ConnectionLimiter(lambda address, reason: lines.append(address), most=4, each=3)
    assert [limiter.admit("a") for _ in range(4)] == [True, True, True, False]
    assert [limiter.admit("b") for _ in range(2)] == [True, False]
    limiter.release("a")
    assert limiter.admit("c")
    assert lines == ["a", "b"]


@pytest.mark.slow
def test_a_request_of_a_stranger_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superlink, "BODY_TIMEOUT", 0.05)
    lines: list[str] = []
    inside = Inside()

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.sleep(0.2 if inside.bodies else 60)
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(event: MutableMapping[str, Any]) -> None:
        return

    scope = {"type": "http", "method": "POST", "path": "/v1/fleet/x", "client": ("203.0.113.9", 1), "headers": []}
    asyncio.run(Guard(inside, SECRET, known, log=lines.append)(scope, receive, send))
    assert inside.bodies == [None]
    assert "nothing more of its body" in lines[0]
    member = {**scope, "headers": [(b"flwr-public-key", KEY.encode())]}
    asyncio.run(Guard(inside, SECRET, known, log=lines.append)(member, receive, send))
    assert inside.bodies == [None, b""]  # a member may be slow
