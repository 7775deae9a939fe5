"""A node's folder is one process's, for as long as that process lives."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fedframe.errors import RunError
from fedframe.federation.folder_lock import hold
from tests.federation.test_processes import child


def test_a_nodes_folder_is_one_processs(tmp_path: Path) -> None:
    program = (
        "import pathlib, time; from fedframe.federation.folder_lock import hold\n"
        f"held = hold(pathlib.Path({str(tmp_path)!r})); print('held', flush=True); time.sleep(600)"
    )
    one = child(tmp_path / "log", program)
    deadline = time.monotonic() + 120
    while "held" not in one.said() and time.monotonic() < deadline:
        time.sleep(0.05)
    with pytest.raises(RunError, match=f"Process {one.pid} takes part with .* already"):
        hold(tmp_path)
    assert one.alive
    one.process.kill()
    one.process.wait(60)
    hold(tmp_path).close()
