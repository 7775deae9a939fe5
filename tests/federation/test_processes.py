"""Processes of ours: what they say when they end, and that they are waited for while they live."""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("flwr")  # `serving` needs it

from fedframe.errors import RunError
from fedframe.federation import folder, serve
from fedframe.federation.folder import FederationFolder
from fedframe.util import processes
from fedframe.util.processes import ChildProcess, free_ports, require_free_port, wait_for_port
from tests.federation.commands import LONG, until


def child(log: Path, program: str) -> ChildProcess:
    return ChildProcess([sys.executable, "-c", program], log, dict(os.environ))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("\\x1b[91mERROR \\x1b[0m: Exit Code: 305\\nNo key.\\nINFO: Finished", "ERROR : Exit Code: 305 No key."),
        ("begun\\nout of memory\\n", "out of memory"),
        ("OSError: full\\nbye\\n\\x1b[32mINFO\\x1b[0m [uvicorn.error] Started.\\x1b[K\\nwell", "OSError: full bye"),
        ("\\x1b[32mINFO\\x1b[0m [uvicorn.error] Started.\\x1b[K\\nserving", "serving"),
        ("", ""),
    ],
)
def test_a_process_that_ended_says_why_and_not_what_an_earlier_one_said(tmp_path: Path, said: str, why: str) -> None:
    (tmp_path / "log").write_text("ERROR: of yesterday\n")
    one = child(tmp_path / "log", f"print('{said}')")
    one.process.wait(LONG)
    assert one.last_error() == why
    (port,) = free_ports(1)
    with pytest.raises(RunError, match="ended"):
        wait_for_port(one, "127.0.0.1", port)


@pytest.mark.slow
def test_a_process_that_was_killed_is_said_to_be_and_not_what_it_was_doing(tmp_path: Path) -> None:
    one = child(tmp_path / "log", "import time; print('ERROR: of before', flush=True); time.sleep(3600)")
    one.process.kill()
    one.process.wait(LONG)
    assert one.how_it_ended() == "was killed by signal 9, perhaps by the system because memory ran out"
    two = child(tmp_path / "log", "raise SystemExit(3)")
    two.process.wait(LONG)
    assert two.how_it_ended() == "ended with code 3 and printed nothing"

    class SuperLinkClient:
        def nodes(self) -> dict[str, object]:
            return {}

    for each, said in ((one, "The SuperLink was killed by signal 9"), (two, "The SuperLink ended with code 3")):
        with pytest.raises(RunError, match=said):
            serve.report_connections(each, SuperLinkClient(), print, Soon())  # type: ignore[arg-type]


class Soon(threading.Event):
    """Waits are over at once."""

    def wait(self, timeout: float | None = None) -> bool:
        return False


@pytest.mark.slow
def test_a_port_of_another_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        for host in ("127.0.0.1", "0.0.0.0"):
            with pytest.raises(RunError, match=f"Another program listens at port {port}"):
                require_free_port(host, port)
        threading.Timer(0.1, stranger.close).start()  # one that is about to end is waited for
        monkeypatch.setattr(processes, "GRACE", LONG)
        require_free_port("0.0.0.0", port)
    with pytest.raises(RunError, match=r"Cannot listen at 192\.0\.2\.1"):
        require_free_port("192.0.2.1", port)


@pytest.mark.slow
def test_who_serves_is_who_holds_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "LOCK_TIMEOUT", 0.2)
    federation = FederationFolder(tmp_path)
    federation.state.mkdir()
    (federation.state / "serve.pid").write_text(str(os.getpid()))  # left by a killed process that had the same id
    assert federation.process("serve") is None
    with federation.exclusive("serve", "serves"):
        assert federation.process("serve") == os.getpid()
        with (
            pytest.raises(RunError, match=f"Process {os.getpid()} serves .* already"),
            federation.exclusive("serve", "serves"),
        ):
            pass
        assert federation.process("start") is None
    assert federation.process("serve") is None


@pytest.mark.slow
def test_a_killed_process_serves_no_more(tmp_path: Path) -> None:
    federation = FederationFolder(tmp_path)
    federation.state.mkdir()
    program = (
        "import pathlib, sys, time; from fedframe.federation.folder import FederationFolder\n"
        f"with FederationFolder(pathlib.Path({str(tmp_path)!r})).exclusive('serve', 'serves'): time.sleep(3600)"
    )
    one = child(tmp_path / "log", program)
    until("it serves", lambda: federation.process("serve") is not None or not one.alive)
    assert federation.process("serve") == one.pid
    one.process.kill()
    one.process.wait(LONG)
    assert federation.process("serve") is None
    with federation.exclusive("serve", "serves"):
        pass


@pytest.mark.slow
def test_a_wait_ends_when_it_is_over(tmp_path: Path) -> None:
    one = child(tmp_path / "log", "import time; time.sleep(3600)")
    over = threading.Event()
    threading.Timer(0.3, over.set).start()
    (port,) = free_ports(1)
    wait_for_port(one, "127.0.0.1", port, over)  # the test ends only if this does
    assert one.alive
    one.stop()
    assert not one.alive
