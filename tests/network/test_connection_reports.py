"""What a node reports about its connection: each thing once, soon, and with the reason."""

from __future__ import annotations

import datetime
import email.utils
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

import fedframe.network.flower.connection_reporter as reporter_module
import fedframe.network.flower.node as node_module
import fedframe.network.flower.reachability as reach
from fedframe.errors import RunError
from fedframe.network.certificates import make_certificates
from fedframe.network.flower.connection_reporter import LINGERING, REPEAT_INTERVAL, ConnectionReporter
from fedframe.network.flower.node import Node, NodeConfig, describe_lost_request
from fedframe.network.flower.reachability import clock_problem, connection_problem
from fedframe.network.flower.superlink_client import SuperLinkClient
from fedframe.util.processes import free_ports
from tests.federation.commands import LONG

UP = "INFO :      SuperNode ID: 77\n"
FAILS = "WARNING :   Connection attempt failed, retrying in 1.00 seconds\n"
BACK = "INFO :      Connection successful after 9.13 seconds and 3 tries.\n"
REFUSED = (
    "ERROR :     Exit Code: 305\nFailed to initialize the connection.\n[code: 2004] Failed to activate SuperNode.\n"
)
NOBODY = "nobody listens"


class Scene:
    """A reporter with a clock and a network of the test's own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.reason, self.looks = 1000.0, None, 0  # type: float, str | None, int
        self.said: list[str] = []
        monkeypatch.setattr(reporter_module, "time", self)
        self.reporter = ConnectionReporter("fl.example.org:8443", "north", self.said.append, self.look)

    def monotonic(self) -> float:
        return self.now

    def look(self) -> str | None:
        self.looks += 1
        return self.reason

    def hears(self, log: str, seconds: float) -> None:
        """The SuperNode's log reads like this for so long."""
        over = self.now + seconds
        while self.now < over:
            self.reporter.read_log(log)
            self.now += 0.5


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def test_why_there_is_no_line_is_said_at_once_and_again_after_minutes_or_when_it_changes(scene: Scene) -> None:
    scene.reason = NOBODY
    scene.hears("", 10)
    assert scene.said == ["Not connected: nobody listens; trying again."]
    scene.hears(FAILS, REPEAT_INTERVAL - 30)
    assert len(scene.said) == 1
    assert scene.looks < 35  # and nobody is called all the time
    scene.hears(FAILS, 60)
    assert len(scene.said) == 2
    scene.reason = "the name cannot be looked up"
    scene.hears(FAILS, 15)
    assert scene.said[2:] == ["Not connected: the name cannot be looked up; trying again."]
    scene.hears(FAILS + UP, 1)
    assert scene.said[3:] == ["Connected to fl.example.org:8443; waiting for work."]


def test_a_line_that_is_lost_and_found_is_said_once_each(scene: Scene) -> None:
    scene.hears(UP, 60)
    scene.reason = NOBODY
    scene.hears(UP + FAILS, 60)
    scene.reason = None
    scene.hears(UP + FAILS + BACK, 60)
    scene.hears("messages\n", 60)  # what it logged of the connection is beyond what is read
    scene.hears("messages\n" + FAILS, 60)
    scene.hears("messages\n" + FAILS + BACK, 60)
    assert scene.said == [
        "Connected to fl.example.org:8443; waiting for work.",
        "Lost the organiser at fl.example.org:8443: nobody listens; trying again.",
        "Connected again.",
        "Lost the organiser at fl.example.org:8443; trying again.",
        "Connected again.",
    ]


def test_a_moment_without_a_line_is_not_worth_a_word(scene: Scene) -> None:
    scene.hears(UP, 5)
    scene.hears(UP + FAILS, 3)
    scene.hears(UP + FAILS + BACK, 60)
    assert scene.said == ["Connected to fl.example.org:8443; waiting for work."]
    assert scene.looks == 0


def test_a_node_that_is_not_let_in_hears_first_of_the_minute_after_a_kill_and_then_of_its_kit(scene: Scene) -> None:
    scene.reporter.supernode_ended(REFUSED, "")
    scene.now += 20
    scene.reporter.supernode_ended(REFUSED, "")
    assert len(scene.said) == 1
    assert "north is not let in yet: it is connected already, or was a minute ago" in scene.said[0]
    scene.now += LINGERING
    scene.reporter.supernode_ended(REFUSED, "")
    assert "connected from another place with the same kit, or its key is not of this federation" in scene.said[1]
    scene.hears(UP, 1)
    scene.reporter.supernode_ended(REFUSED, "")
    assert scene.said[3].startswith("Lost the organiser at fl.example.org:8443: north is not let in yet")
    scene.now += LINGERING
    scene.reporter.supernode_ended(REFUSED, "")
    assert "another place" in scene.said[4]
    assert "key" not in scene.said[4]  # it was good before


def test_a_supernode_that_ends_says_why_unless_the_network_does(scene: Scene) -> None:
    scene.reporter.supernode_ended("", "the SuperNode was killed by signal 9")
    scene.reporter.supernode_ended("INFO :      SuperNode terminated gracefully.", "")
    scene.reason = NOBODY
    scene.reporter.supernode_ended("ERROR: SSL/TLS handshake", "handshake")
    assert [text.partition(": ")[2].partition(" (")[0] for text in scene.said] == [
        "the SuperNode was killed by signal 9; trying again.",
        "the organiser refused its signature",
        "nobody listens; trying again.",
    ]


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take long to answer itself."""
    monkeypatch.setattr(reach, "STEP_TIMEOUT", LONG)
    monkeypatch.setattr(reach, "TOTAL_TIMEOUT", 2 * LONG)


# -- looks at a network ------------------------------------------------------------------------------------------------
class Answers(BaseHTTPRequestHandler):
    """A stranger's or a federation's server."""

    code, seconds = 404, 0.0

    def do_HEAD(self) -> None:
        self.send_response_only(self.code)
        self.send_header("date", email.utils.formatdate(time.time() + self.seconds, usegmt=True))
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        """Nothing."""


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Starts servers with the certificates of a folder; gives their addresses."""
    servers = []

    def start(folder: Path | None, code: int = 404, seconds: float = 0.0, host: str = "127.0.0.1") -> str:
        handler = type("Handler", (Answers,), {"code": code, "seconds": seconds})
        server = ThreadingHTTPServer((host, 0), handler)
        if folder is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(folder / "server.pem", folder / "server.key")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"{host}:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_certificates(folder / "ours", ["127.0.0.1"], "clinic")
    make_certificates(folder / "theirs", ["127.0.0.1"], "clinic")  # of the same name
    return folder


@pytest.mark.slow
def test_what_is_wrong_with_an_address_is_found_out(
    keys: Path, serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = keys / "ours" / "ca.pem"
    assert connection_problem(serve(keys / "ours"), ca) is None
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        for address, said in (
            (f"127.0.0.1:{port}", "nobody listens at 127.0.0.1:"),
            ("no.such.host.invalid:8443", "the name no.such.host.invalid cannot be looked up"),
            (serve(keys / "theirs"), "another federation is served at"),
            (serve(keys / "ours", host="127.0.0.2"), "is of another name"),
            (serve(None), "does not speak TLS"),
            (serve(keys / "ours", code=503), "too busy"),
            (serve(keys / "ours", seconds=-60.0), "s ahead of the organiser's"),
        ):
            assert said in (connection_problem(address, ca) or ""), address
        monkeypatch.setattr(reach, "STEP_TIMEOUT", 0.5)
        assert "does not answer" in (connection_problem(f"127.0.0.1:{mute.getsockname()[1]}", ca) or "")


@pytest.mark.slow
def test_a_name_server_that_does_not_answer_holds_nobody_up(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "TOTAL_TIMEOUT", 0.2)
    slow = threading.Event()
    monkeypatch.setattr(reach, "_attempt", lambda address, ca: slow.wait())  # for ever, if anybody waits for it
    assert "does not answer" in (connection_problem("fl.example.org:1", keys / "ours" / "ca.pem") or "")
    slow.set()


@pytest.mark.parametrize(("ahead", "fine"), [(0, True), (4, True), (60, False), (-290, True), (-400, False)])
def test_clocks_may_differ_as_much_as_flower_allows(ahead: float, fine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    here = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)  # it stands still, however busy the machine is
    still = SimpleNamespace(datetime=SimpleNamespace(now=lambda zone: here), UTC=datetime.UTC)
    monkeypatch.setattr(reach, "datetime", still)
    theirs = here - datetime.timedelta(seconds=ahead)
    assert (clock_problem(email.utils.format_datetime(theirs, usegmt=True)) is None) == fine
    assert clock_problem("") is None


# -- the organiser's own line ------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_missing_superlink_is_started_by_a_command_and_another_federations_is_named(
    keys: Path, serve: Callable[..., str]
) -> None:
    (port,) = free_ports(1)
    for address, said in (
        (f"127.0.0.1:{port}", r"There is no SuperLink at .*; start it with 'fedframe federation serve clinic'\.$"),
        (serve(keys / "theirs"), r"Another federation is served at .* not of this one\. Stop that one first"),
        (serve(None), r"does not answer \(.*\); is it running\? If not, start it with 'fedframe"),
    ):
        link = SuperLinkClient(
            address, (keys / "ours" / "ca.pem").read_bytes(), "secret", "fedframe federation serve clinic"
        )
        with pytest.raises(RunError, match=said):
            link.nodes()
        link.close()


# -- the node ----------------------------------------------------------------------------------------------------------
class Dead:
    """A SuperNode that has ended, and the line to it."""

    alive, log = False, Path("supernode.log")

    def log_tail(self) -> str:
        return REFUSED

    def how_it_ended(self) -> str:
        return "ended: ERROR"

    def stop(self) -> None:
        """Nothing is left to end."""

    def close(self) -> None:
        """The line to it."""


@pytest.mark.slow
def test_a_node_whose_supernode_is_refused_says_so_once_and_goes_on(
    tmp_path: Path, keys: Path, serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(keys / "ours" / "ca.pem", tmp_path)
    monkeypatch.setattr(node_module, "RESTART_DELAYS", (0.01,))
    said: list[str] = []
    place = NodeConfig(serve(keys / "ours"), tmp_path / "ca.pem", tmp_path / "node.key", tmp_path, "north")
    node = Node(place, lambda payload: payload, said.append)
    starts = []

    def start() -> Any:
        starts.append(1)
        node.child = Dead()  # type: ignore[assignment]
        if len(starts) == 5:
            node.stopping.set()
        return node.child

    monkeypatch.setattr(node, "start_supernode", start)
    node.serve_forever()
    assert len(starts) == 5
    assert len(said) == 1
    assert said[0].startswith("Not connected: north is not let in yet")


def test_a_request_that_never_becomes_whole_is_reported_for_people() -> None:
    text = describe_lost_request(ObjectPullError("38c2" * 16, "timeout or retry limit reached"))
    assert "did not arrive whole" in text
    assert "38c2" not in text
    assert "SuperNode of this machine ended (no message)" in describe_lost_request(RunError("no message"))
