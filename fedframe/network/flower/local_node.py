"""A node of a trial as a process: python -m fedframe.network.flower.local_node NETWORK_FOLDER NAME PORT."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from fedframe.network.flower.environment import require_packages


def main() -> None:
    """Serve until ended."""
    require_packages("flwr")
    from fedframe.network.flower.node import Node, Place
    from fedframe.network.local_nodes import node_work

    network, name, port = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    folder = network / name
    work = node_work(folder)
    place = Place(f"127.0.0.1:{port}", network / "ca.pem", folder / "node.key", folder)
    node = Node(place, lambda letter: work.answer(letter)[2], lambda text: print(text, flush=True))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    node.stay()


if __name__ == "__main__":
    main()
