"""`fedframe federation health`: whether a folder's server or node runs, for supervisors of containers.

A node that has lost the organiser is healthy: it comes back by itself, and to be started again would not help it.
"""

from __future__ import annotations

import socket
from pathlib import Path

from filelock import FileLock, Timeout

from fedframe.errors import DataError, RunError
from fedframe.federation.folder import AGREEMENT, FederationFolder
from fedframe.federation.node_folder import LOCK

TIMEOUT = 5.0  # seconds in which a server must answer


def check_health(folder: Path) -> str:
    """One sentence on what runs; an error if nothing does."""
    if (folder / "node.txt").exists():
        if not is_held(folder / LOCK):
            raise RunError(f"No process takes part with {folder}.")
        return f"A process takes part with {folder}."
    if not (folder / AGREEMENT).exists():
        raise DataError(
            f"{folder} is no folder of a federation or of a node; give one, such as clinic/ or north-node/."
        )
    made = FederationFolder.open(folder)
    port = made.agreement().port
    if made.process("serve") is None:
        raise RunError(f"No process serves {folder}.")
    try:
        socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT).close()
    except OSError as error:
        raise RunError(f"The process that serves {folder} does not answer at port {port} ({error}).") from error
    return f"A process serves {folder} at port {port}."


def is_held(lock: Path) -> bool:
    """Whether a process holds a lock; looking does not take it away from one that is just starting."""
    if not lock.exists():
        return False
    try:
        with FileLock(lock, timeout=0):
            return False
    except Timeout:
        return True
