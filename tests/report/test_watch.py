"""The live page: follows a run, serves two things only, and answers to its own name only."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fedframe.errors import SettingError
from fedframe.report.watch import PageServer
from tests.report.browser import Seen
from tests.report.made import made_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PATIENCE = 300  # seconds: only a test that hangs waits for so long


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made_run(tmp_path / "run")


@pytest.fixture
def server(folder: Path) -> Iterator[PageServer]:
    with PageServer([folder], "127.0.0.1", 0) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def ask(server: PageServer, path: str = "/data.json", method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE)
    connection.putrequest(method, path, skip_host=True)
    for name, value in {"Host": f"127.0.0.1:{server.server_port}", **headers}.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    return connection.getresponse()


@pytest.mark.slow
def test_it_serves_the_page_and_its_data(server: PageServer) -> None:
    page = ask(server, "/")
    assert page.status == 200
    assert "connect-src 'self'" in page.read().decode()
    assert json.loads(ask(server).read())["live"] is True


@pytest.mark.parametrize(
    "path",
    [
        "/config.yaml",
        "/../config.yaml",
        "/..%2fconfig.yaml",
        "//etc/passwd",
        "/data.json/../x",
        "/model.safetensors",
        "/%2e%2e/",
    ],
)
def test_nothing_else_is_served(server: PageServer, path: str) -> None:
    assert ask(server, path).status == 404


@pytest.mark.slow
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_only_get_is_answered(server: PageServer, method: str) -> None:
    assert ask(server, "/", method).status == 501


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("evil.example", 403),
        ("evil.example:8765", 403),
        ("", 403),
        ("192.168.1.1", 403),
        ("127.0.0.1.evil.example", 403),
    ],
)
def test_a_foreign_name_is_refused(server: PageServer, host: str, status: int) -> None:
    assert ask(server, Host=host).status == status


def test_a_server_for_others_answers_to_addresses_but_not_to_names(folder: Path) -> None:
    with PageServer([folder], "0.0.0.0", 0) as server:
        assert server.is_addressed_by("192.168.1.7:8765")
        assert server.is_addressed_by(socket.gethostname())
        assert not server.is_addressed_by("evil.example")


@pytest.mark.slow
def test_news_come_only_when_there_are_any(server: PageServer, folder: Path) -> None:
    first = ask(server)
    tag = first.headers["ETag"]
    assert first.read()
    assert ask(server, If_None_Match=tag).status == 304
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"round": 9, "loss": 0.1, "generic": 0.99, "seconds": 1}) + "\n")
    again = ask(server, If_None_Match=tag)
    assert again.status == 200
    assert "0.99" in again.read().decode()


def test_a_tab_that_is_closed_early_leaves_the_terminal_quiet(
    server: PageServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = threading.Event()
    error: Exception = BrokenPipeError()

    def now() -> dict[str, object]:
        raise error

    finish = server.shutdown_request

    def finished(request: object) -> None:
        finish(request)  # type: ignore[arg-type]
        ended.set()

    monkeypatch.setattr(server.page, "now", now)
    monkeypatch.setattr(server, "shutdown_request", finished)
    for kind, said in ((BrokenPipeError, False), (ConnectionResetError, False), (ValueError, True)):
        error = kind("on the way")
        ended.clear()
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(server)
        assert ended.wait(PATIENCE)
        assert ("on the way" in capfd.readouterr().err) is said


def test_a_page_waits_for_a_run_that_has_not_begun(tmp_path: Path) -> None:
    with PageServer([tmp_path / "later"], "127.0.0.1", 0) as server:
        assert server.page.now()["state"] == "waiting"
        folder = made_run(tmp_path / "later")
        (folder / "summary.json").unlink()
        assert server.page.now()["state"] == "round 8 of 8"


@pytest.mark.slow
def test_a_port_that_is_taken_is_said_with_one_that_works(server: PageServer, folder: Path) -> None:
    with pytest.raises(SettingError, match=f"try --port {server.server_port + 1}"):
        PageServer([folder], "127.0.0.1", server.server_port)


@pytest.mark.slow
def test_the_live_page_redraws_and_keeps_what_the_reader_chose(
    server: PageServer, folder: Path, browser: Browser
) -> None:
    seen = Seen(browser, server.url)
    page = seen.page
    page.locator("#curves .choice label", has_text="seconds").locator("input").check()
    page.locator("#curves .legend button").first.click()
    page.locator("#curves details.numbers summary").click()
    rows = page.locator("#curves details.numbers tbody tr").count()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"round": 9, "loss": 0.1, "generic": 0.987, "client": 0.9, "seconds": 1}) + "\n")
    page.locator("#curves .legend", has_text="98.7").wait_for()
    seen.wait()
    assert page.locator("#curves .choice label", has_text="seconds").locator("input").is_checked()
    assert page.locator("#curves .legend button").first.get_attribute("aria-pressed") == "false"
    assert page.locator("#curves details.numbers tbody tr").count() > rows
    assert seen.complaints == []
    assert all(url.startswith((server.url, "data:")) for url in seen.asked_for)
    seen.close()


@pytest.mark.slow
@pytest.mark.parametrize("polite", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_kill_end_the_command(folder: Path, polite: signal.Signals) -> None:
    command = [sys.executable, "-c", "from fedframe.cli import main; main()", "watch", str(folder), "--port", "0"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # What a shell starts in the background ignores Ctrl-C, and hands that down to its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Live at http://127.0.0.1:")
        process.send_signal(polite)
        assert process.wait(PATIENCE) == 0
        assert "closed" in process.stdout.read()
    finally:
        process.kill()
