"""Flower's SuperNode with shorter waits: it polls for messages every second instead of every three, and for the pieces
of a message that is still being sent after a fifth of a second instead of one. And when it gives up (it does when a
network is cut in the middle of a handshake) it ends: Flower's own would stay, with an interface that answers and a loop
that has ended, and nobody would start it again.

python -m fedframe.network.flower.supernode [options of flower-supernode]
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

MAX_SLEEP = 1.0  # seconds; a poll costs the SuperLink a few milliseconds
FIRST_BACKOFF = 0.2  # seconds before a piece is asked for the second time; later attempts are further apart


class ImpatientTime:
    """The module `time` as the SuperNode's loop sees it: no sleep is long."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    @staticmethod
    def sleep(seconds: float) -> None:
        """Sleep, but no longer than `MAX_SLEEP`."""
        time.sleep(min(seconds, MAX_SLEEP))


def main() -> None:
    """Start a SuperNode."""
    from fedframe.network.flower.environment import require_packages

    require_packages("flwr")
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    start_client_internal.time = ImpatientTime()  # type: ignore[attr-defined, assignment]
    defaults = start_client_internal.pull_objects.__kwdefaults__  # type: ignore[attr-defined]
    defaults["initial_backoff"] = FIRST_BACKOFF  # type: ignore[index]
    code: object = 1
    try:
        flower_supernode()
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    main()
