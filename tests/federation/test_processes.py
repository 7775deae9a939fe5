"""Processes of ours: what they say when they end, and that they are waited for while they live."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from fedframe.errors import RunError
from fedframe.federation.processes import Child, free_ports, wait_for_port


def child(log: Path, program: str) -> Child:
    return Child([sys.executable, "-c", program], log, dict(os.environ))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("\\x1b[91mERROR \\x1b[0m: Exit Code: 305\\nNo key.\\nINFO: Finished", "ERROR : Exit Code: 305 No key."),
        ("begun\\nout of memory\\n", "out of memory"),
        ("", ""),
    ],
)
def test_a_process_that_ended_says_why_and_not_what_an_earlier_one_said(tmp_path: Path, said: str, why: str) -> None:
    (tmp_path / "log").write_text("ERROR: of yesterday\n")
    one = child(tmp_path / "log", f"print('{said}')")
    one.process.wait(60)
    assert one.last_words() == why
    (port,) = free_ports(1)
    with pytest.raises(RunError, match="ended at once"):
        wait_for_port(one, "127.0.0.1", port)


def test_a_wait_ends_when_it_is_over(tmp_path: Path) -> None:
    one = child(tmp_path / "log", "import time; time.sleep(600)")
    over = threading.Event()
    threading.Timer(0.3, over.set).start()
    began = time.monotonic()
    (port,) = free_ports(1)
    wait_for_port(one, "127.0.0.1", port, over)
    assert time.monotonic() - began < 60
    assert one.alive
    one.end()
    assert not one.alive
