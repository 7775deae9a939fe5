"""A node of a local deployment as a process: python -m fedframe.network.flower.local_node NETWORK_FOLDER NAME PORT."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from fedframe.network.flower.environment import require_packages


def main() -> None:
    """Serve until ended."""
    require_packages("flwr")
    from fedframe.network.flower.node import Node, NodeConfig
    from fedframe.network.local_nodes import answer, load_node_runtime

    network, name, port = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    folder = network / name
    runtime = load_node_runtime(folder)
    config = NodeConfig(f"127.0.0.1:{port}", network / "ca.pem", folder / "node.key", folder)
    node = Node(config, lambda payload: answer(runtime, folder, payload), lambda text: print(text, flush=True))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    node.serve_forever()


if __name__ == "__main__":
    main()
