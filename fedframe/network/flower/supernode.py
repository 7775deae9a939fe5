"""Flower's SuperNode, a little more attentive: it looks for messages every second instead of every three, and for the
pieces of a message that is still being sent after a fifth of a second instead of one. And when it gives up (it does
when a network is cut in the middle of a handshake) it ends: Flower's own would stay, with an interface that answers and
a loop that is over, and nobody would start it again.

python -m fedframe.network.flower.supernode [options of flower-supernode]
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

LOOK = 1.0  # seconds; a look costs the SuperLink a few milliseconds
AGAIN = 0.2  # seconds before the first second look for a piece; later ones are further apart


class Attentive:
    """The module `time` as the SuperNode's loop sees it: no nap is long."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    @staticmethod
    def sleep(seconds: float) -> None:
        """Sleep, but not for long."""
        time.sleep(min(seconds, LOOK))


def main() -> None:
    """Start a SuperNode."""
    from fedframe.network.flower.environment import require_packages

    require_packages("flwr")
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    start_client_internal.time = Attentive()  # type: ignore[attr-defined, assignment]
    start_client_internal.pull_objects.__kwdefaults__["initial_backoff"] = AGAIN  # type: ignore[attr-defined, index]
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
