"""Flower's simulation on a job: `python -m benchmarks.peers.flower D 5 job.npz 2`, with so many processors of Ray.

The client does what Flower's own PyTorch example does: it makes the net, loads what was sent, trains, and sends the
weights. Data are read once per process, and torch has one thread there, as in Fedframe's workers.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.jobs import JOBS, Job
from benchmarks.loops import load
from benchmarks.peers.meter import Meter
from benchmarks.plain_nets import plain_net

try:
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation
except ImportError as error:
    sys.exit(f"Flower's simulation is not installed here ({error}): pip install 'fedframe[flower-sim]'")


@functools.cache
def data(path: str) -> tuple[Tensor, Tensor]:
    torch.set_num_threads(1)
    return load(path)


def train(job: Job, net: torch.nn.Module, x: Tensor, y: Tensor) -> None:
    """One epoch over a client's samples."""
    optimizer = torch.optim.SGD(net.parameters(), lr=job.lr)
    net.train()
    for rows in torch.randperm(len(y)).split(job.batch):  # type: ignore[no-untyped-call]
        optimizer.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def client_app(job: Job, path: str) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train_client(message: Message, context: Context) -> Message:
        x, y = data(path)
        first = int(context.node_config["partition-id"]) * job.samples_each
        own = slice(first, first + job.samples_each)
        net = plain_net(job, tuned=False)
        arrays = message.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        net.load_state_dict(arrays.to_torch_state_dict())
        train(job, net, x[own], y[own])
        reply: dict[str, ArrayRecord | MetricRecord | ConfigRecord] = {
            "arrays": ArrayRecord(net.state_dict()),
            "metrics": MetricRecord({"num-examples": job.samples_each}),
        }
        return Message(content=RecordDict(reply), reply_to=message)

    return app


class Complete(FedAvg):
    """FedAvg that goes on only if every client has trained: Flower's own takes a round of errors for a fast one."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """End the program after a round with an error."""
        replies = list(replies)
        errors = [reply.error.reason for reply in replies if reply.has_error()]
        if errors:
            print(f"{len(errors)} of {len(replies)} clients failed: {errors[0]}", file=sys.stderr, flush=True)
            os._exit(1)  # an error in this thread would leave the simulation waiting
        return super().aggregate_train(server_round, replies)


def server_app(job: Job, rounds: int, meter: Meter) -> ServerApp:
    app = ServerApp()

    def finished(round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if round:  # it is also called before the first
            meter.round()
        return None

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Complete(
            fraction_train=job.per_round / job.clients,
            fraction_evaluate=0.0,
            min_train_nodes=job.per_round,
            min_available_nodes=job.clients,
        )
        initial = ArrayRecord(plain_net(job, tuned=False).state_dict())
        config = ConfigRecord({"lr": job.lr})
        strategy.start(grid, initial, num_rounds=rounds + 1, train_config=config, evaluate_fn=finished)

    return app


def main(name: str, rounds: int, path: str, workers: int) -> None:
    job, meter = JOBS[name], Meter()
    # Ray ends its own processes where other work has taken most of the memory, and runs them behind all other work:
    # on a busy machine the simulation would wait for them for ever.
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")
    logging.getLogger("flwr").setLevel(logging.ERROR)
    resources: dict[str, Any] = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {
            "num_cpus": workers,
            "log_to_driver": False,
            "logging_level": "error",
            "include_dashboard": False,
        },
    }
    run_simulation(server_app(job, rounds, meter), client_app(job, path), job.clients, backend_config=resources)
    if meter.rounds != rounds + 1:
        sys.exit(f"Flower's simulation ended after {meter.rounds} of {rounds + 1} rounds")
    meter.report()


if __name__ == "__main__":
    from benchmarks.peers import flower  # Ray's processes find what belongs to a module, and not what is in `__main__`

    flower.main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
