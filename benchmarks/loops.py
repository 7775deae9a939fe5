"""What Fedframe is measured against: a bare loop, and the limit (hand-tuned, two processes, nothing federated).

Run as a program: `python -m benchmarks.loops bare A 5 job.npz` prints the seconds of the steps as JSON. A last word
`keep-memory`, `strides` or `keep-memory,strides` gives the limit what Fedframe has beside it, to see what matters.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.jobs import JOBS, Job
from benchmarks.plain_nets import plain_net
from fedframe.engines.worker import prepare_process
from fedframe.models.custom import channels_last


def load(path: str) -> tuple[Tensor, Tensor]:
    with np.load(path) as file:
        images, labels = file["x_train"], file["y_train"]
    x = torch.from_numpy(images).float()
    if x.dim() == 2:
        return x, torch.from_numpy(labels)
    x = x.div_(255 if images.dtype == np.uint8 else 1).sub_(0.5).mul_(2)
    return (x.permute(0, 3, 1, 2).contiguous() if x.dim() == 4 else x[:, None]), torch.from_numpy(labels)


def steps(job: Job, clients: int, x: Tensor, y: Tensor, tuned: bool, extra: str) -> None:
    """`clients` times one epoch over a client's samples."""
    torch.manual_seed(0)
    net = plain_net(job, tuned)
    if "strides" in extra:
        channels_last(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=job.lr, fused=tuned or None)
    for client in range(clients):
        first = (client % job.clients) * job.samples_each
        request = first + torch.randperm(job.samples_each)
        for rows in request.split(job.batch):  # type: ignore[no-untyped-call]
            inputs = x[rows]
            if tuned and inputs.dim() == 4:
                inputs = inputs.contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), y[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def timed(job: Job, clients: int, path: str, tuned: bool, extra: str, barrier: object, results: object) -> None:
    torch.set_num_threads(1)
    if "keep-memory" in extra:
        prepare_process()
    x, y = load(path)
    steps(job, 1, x, y, tuned, extra)  # warm
    barrier.wait()  # type: ignore[attr-defined]
    wall, cpu = time.perf_counter(), time.process_time()
    steps(job, clients, x, y, tuned, extra)
    results.put((time.perf_counter() - wall, time.process_time() - cpu))  # type: ignore[attr-defined]


def main(kind: str, name: str, rounds: int, path: str, extra: str = "") -> None:
    job = JOBS[name]
    processes = 2 if kind == "limit" else 1
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(processes), context.Queue()
    share = rounds * job.per_round // processes
    workers = [
        context.Process(target=timed, args=(job, share, path, kind == "limit", extra, barrier, results))
        for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    times = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    print(json.dumps({"wall": max(wall for wall, _ in times), "cpu": sum(cpu for _, cpu in times)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:6])
