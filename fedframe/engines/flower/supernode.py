"""Flower's SuperNode, a little more attentive: it looks for messages every second instead of every three.

python -m fedframe.engines.flower.supernode [options of flower-supernode]
"""

from __future__ import annotations

import time
from typing import Any

LOOK = 1.0  # seconds; a look costs the SuperLink a few milliseconds


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
    from fedframe.engines.flower.calm import need

    need("flwr")
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli import flower_supernode

    start_client_internal.time = Attentive()  # type: ignore[attr-defined]
    flower_supernode()


if __name__ == "__main__":
    main()
