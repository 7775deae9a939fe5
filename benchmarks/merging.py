"""Memory of merging large updates: `python -m benchmarks.merging [mean|server|gne] [--clients 100] [--millions 25]`.

One process merges updates that are drawn one after the other, as they would come from workers, and reports the most
that it held (peak resident memory) above what it held with a single update, in megabytes and in models. `server` is a
whole round of FedAvg on the server, from the request to the new model, with an engine that lends those updates.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedframe.core.aggregation import RunningMean
from fedframe.core.engine import Engine
from fedframe.core.kept_updates import KeptUpdates
from fedframe.core.message import Message
from fedframe.core.server import Server
from fedframe.jobs.build import JobMaker
from fedframe.jobs.gather import gather
from fedframe.methods.parts.nash import bargain, combination, gram_matrix


def memory(field: str) -> float:
    """Megabytes of this process: VmRSS now, VmHWM at most since it was last set back."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


class Drawn(Engine):
    """Lends one update after the other, all in the same memory."""

    def __init__(self, size: int) -> None:
        self.update, self.seconds = torch.randn(size), 0.0

    def draw(self) -> Tensor:
        start = time.process_time()
        self.update.normal_().add_(0.1)
        self.seconds += time.process_time() - start
        return self.update

    def run(self, request: Message, units: Sequence[int]) -> Iterator[Message]:
        for unit in units:
            yield Message(
                "train", request.round, unit, {"update": self.draw()}, {"samples": 1, "steps": 1, "loss": 1.0}
            )


def server_of(folder: Path, clients: int, millions: float) -> Server:
    """A server whose model has one large layer of so many weights; each client has one sample."""
    width = int((millions * 1e6) ** 0.5)
    x, y = np.random.default_rng(0).standard_normal((clients, width), dtype=np.float32), np.arange(clients) % 10
    data = {"x_train": x, "y_train": y, "x_test": x[:10], "y_test": y[:10]}
    given = {"method": "fedavg", "data": "python", "partition": "iid", "clients": clients, "local_test": 0.0}
    job = JobMaker(gather({**given, "model": f"mlp:{width}", "min_client_size": 1}, None), data, None).make(folder)
    return Server(job, Drawn(job.roles.layout.size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rule", choices=["mean", "server", "gne"])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--millions", type=float, default=25)
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = int(options.millions * 1e6)
    with tempfile.TemporaryDirectory() as folder:
        server = server_of(Path(folder), options.clients, options.millions) if options.rule == "server" else None
        engine = server.engine if server is not None else Drawn(size)
        assert isinstance(engine, Drawn)
        Path("/proc/self/clear_refs").write_text("5")  # sets the highest value back
        before, began = memory("VmRSS"), time.process_time()
        if server is not None:
            server.run_round(1, lambda done, total: None)
        elif options.rule == "mean":
            mean = RunningMean(size)
            for _ in range(options.clients):
                mean.add(engine.draw(), 1.0)
            mean.into_mean()
        else:
            kept = KeptUpdates(Path(folder))
            for _ in range(options.clients):
                kept.add(engine.draw().clone())
            combination(kept.updates, bargain(gram_matrix(kept.updates)).p)
        seconds = time.process_time() - began - engine.seconds
        extra, model = memory("VmHWM") - before, 4 * size / 2**20
    print(f"{options.rule}, {options.clients} updates of {options.millions:g} million weights ({model:.0f} MB each):")
    print(
        f"{extra:.0f} MB ({extra / model:.1f} models) above one update; {seconds:.1f} CPU seconds without the drawing"
    )


if __name__ == "__main__":
    main()
