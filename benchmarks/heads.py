"""Head stages for many clients at once beside one by one: `python -m benchmarks.heads [--clients 100]`.

Seconds of the personal stage alone (features, training, scoring, writing the models) in one process on one thread, both
ways in turn within a repeat; the median over repeats.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from fedframe.core import personal
from fedframe.core.job import Job
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.jobs.build import JobMaker
from fedframe.jobs.gather import gather

EACH = 60  # samples of a client
STAGES: dict[str, tuple[str, dict[str, dict[str, object]]]] = {
    "a linear classifier, 15 epochs": ("fedavg", {"fine_tune": {"what": "head", "epochs": 15}}),
    "LA-FR, 15 epochs": ("fedloge", {"la_fr": {"epochs": 15}}),
    "FedETF's alternation, 20 x (3 + 3) epochs": (
        "fedetf",
        {"fedetf_stage": {"feature_epochs": 0, "iterations": 20, "epochs": 3}},
    ),
}


def make(method: str, values: dict[str, dict[str, object]], clients: int, folder: Path) -> Job:
    """A job whose clients hold vectors of 64 numbers."""
    draw = np.random.default_rng(0)
    count = clients * EACH
    data = {
        "x_train": draw.normal(size=(count, 64)).astype(np.float32),
        "y_train": draw.integers(0, 10, count),
        "user_train": np.repeat(np.arange(clients), EACH),
    }
    given = {"method": method, "set": values, "data": "python", "model": "mlp", "batch": 10, "local_test": 0.25}
    return JobMaker(gather({**given, "partition": "user", "save_personal": True}, None), data, None).make(folder)


def seconds(job: Job) -> float:
    """How long all personal models take."""
    engine = InlineEngine(job)
    server = Server(job, engine, lambda _: None)
    request = server.build_request("personalise_group", 1)
    with mock.patch.object(engine.runtime, "catch_up"):  # clients took part in the rounds before
        began = time.perf_counter()
        for _ in engine.run(request, range(len(job.personal_groups))):
            pass
        return time.perf_counter() - began


def main(clients: int, repeats: int) -> None:
    torch.set_num_threads(1)
    for name, (method, values) in STAGES.items():
        pairs = []
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                together = seconds(make(method, values, clients, Path(folder) / "together"))
                with mock.patch.object(personal, "can_stack", return_value=False):
                    alone = seconds(make(method, values, clients, Path(folder) / "alone"))
                pairs.append((together, alone))
        ratio = statistics.median(alone / together for together, alone in pairs)
        first, second = (statistics.median(times) for times in zip(*pairs, strict=True))
        print(f"{name}: {clients} clients in groups {first:.2f} s, one by one {second:.2f} s, {ratio:.1f} times")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    main(given.clients, given.repeats)
