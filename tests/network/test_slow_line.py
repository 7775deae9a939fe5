"""What a slow line must pass before a node gives up; the whole of it, with a real federation, is benchmarks/load.py."""

from __future__ import annotations

import inspect
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedframe.network.flower.chunks import MIN_CHUNK_BYTES, STALLED
from fedframe.network.flower.environment import PIECE_BYTES, VARIABLES, environment
from fedframe.util.processes import free_ports
from tests.federation.proxy import SlowLine

SLOWEST = 0.3e6 / 8  # bytes per second: what docs/federation/troubleshooting.md says
ASK = "from fedframe.network.flower.environment import require_packages; require_packages('flwr'); {}"


def test_two_pieces_at_a_time_pass_a_slow_line_before_anybody_gives_up() -> None:
    """Pieces of 5 MB were sent again and again over a megabit per second, and never arrived."""
    from flwr.supercore.constant import FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES
    from flwr.supercore.protobuf.client import ProtobufClient

    patience = inspect.signature(ProtobufClient.__init__).parameters["timeout"].default
    assert FLWR_PRIVATE_MAX_CONCURRENT_OBJ_PUSHES * PIECE_BYTES / SLOWEST < patience < STALLED
    assert MIN_CHUNK_BYTES < PIECE_BYTES


@pytest.mark.slow
def test_flower_takes_the_size_of_pieces_in_every_process_of_ours(tmp_path: Path) -> None:
    assert environment(tmp_path)["FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE"] == str(PIECE_BYTES)
    assert "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE" in VARIABLES
    asked = ASK.format("import flwr.common.constant as c; print(c.FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE)")
    found = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert int(found.stdout) == PIECE_BYTES


@pytest.mark.slow
def test_a_slow_line_passes_what_it_should_and_no_faster() -> None:
    near, far = free_ports(2)
    content, received = bytes(range(256)) * 400, bytearray()

    def listen(server: socket.socket) -> None:
        connection, _ = server.accept()
        while piece := connection.recv(1 << 16):
            received.extend(piece)

    with socket.create_server(("127.0.0.1", far)) as server:
        listener = threading.Thread(target=listen, args=(server,), daemon=True)
        listener.start()
        line = SlowLine(near, far, bits_per_second=8e5)
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", near)) as caller:
            caller.sendall(content)
        listener.join(60)
        assert time.monotonic() - began >= len(content) / 1e5 - 0.05
        line.close()
    assert bytes(received) == content
    assert (line.up.passed, line.down.passed) == (len(content), 0)
