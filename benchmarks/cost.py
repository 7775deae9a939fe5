"""What a round of each method costs beside a round of FedAvg: `python -m benchmarks.cost [--repeats 5] [--rounds 1]`.

One job for all: 28x28 images dealt out evenly to 20 clients, `convnet`, batch 128, five local epochs, SGD with
momentum. Counted are the processor seconds of this process and its workers during rounds alone: no start, no
evaluation, no personal models. Every method has a running server and workers of its own and a round behind it. A round
of FedAvg is measured right before and right after each round, so that what else runs on the machine hits all alike; the
ratio is that to their mean, and the median over repeats counts. Last, a step with LRA beside a plain one, one thread.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fedframe.cli.options import part_settings
from fedframe.core.client_context import ClientContext
from fedframe.core.client_loop import StepHooks, gradient_step
from fedframe.core.optimizers import make_optimizer
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.engines.worker import prepare_process
from fedframe.engines.worker_pool import WorkerEngine
from fedframe.jobs.build import JobMaker
from fedframe.jobs.gather import gather

# Settings of parts follow a method's name; memory (gmv) is in use from the first round on.
METHODS = (
    "fedavg,fedprox,scaffold,moon,spherefed,fedetf,fedavg_etf gmv.warm=1,fedavg_etf gmv.warm=1 gmv.means=training,"
    "fedloge,fedrane,fedavg+lra,fedavg+gne"
)
TARGETS = {"spherefed": 1.05, "fedetf": 1.05, "fedavg_etf": 1.05, "fedloge": 1.15, "fedrane": 2.0}
CLIENTS, BATCH = 20, 128  # by default one full batch per client and epoch: short rounds, measured close to each other


def make_data(name: str, samples: int) -> Any:
    """A data source by name, or random images: only LRA's graph sees what is on them, and it takes its time anyway."""
    if name != "random":
        return name
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (samples, 28, 28), dtype=np.uint8), draw.integers(0, 10, samples)
    return {"x_train": x, "y_train": y, "x_test": x[:100], "y_test": y[:100]}


def job_maker(name: str, data: Any, epochs: int) -> JobMaker:
    """The job with this method; whatever a recipe brings along is set to the same for all."""
    method, *given = name.split()
    settings = gather(
        {
            "method": method,
            "data": data if isinstance(data, str) else "python",
            "partition": "iid",
            "clients": CLIENTS,
            "local_test": 0.0,
            "model": "convnet",
            "batch": BATCH,
            "epochs": epochs,
            "rounds": 1000,
            "optimizer": "sgd",
            "lr": 0.01,
            "lr_schedule": "constant",
            "momentum": 0.9,
            "weight_decay": 1e-5,
            "weighting": "samples",
            "set": part_settings(given),
        },
        None,
    )
    return JobMaker(settings, None if isinstance(data, str) else data, None)


# -- rounds ------------------------------------------------------------------------------------------------------------
@dataclass
class Running:
    """A server with its workers."""

    server: Server
    engine: WorkerEngine

    def cpu_seconds(self) -> float:
        """Of this process and the workers, to the nanosecond: Linux has a clock for every process."""
        pids = [worker.process.pid or 0 for worker in self.engine.workers]
        return time.process_time() + sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)

    def measure(self, rounds: int) -> float:
        """Processor seconds of some more rounds."""
        before = self.cpu_seconds()
        for _ in range(rounds):
            record = self.server.run_round(self.server.round + 1, lambda done, total: None)
            assert record.dropped == 0, "an update was refused: this is not the job that was to be measured"
            self.server.round += 1
        return self.cpu_seconds() - before


def compare_rounds(names: Sequence[str], maker: JobMaker, options: argparse.Namespace) -> None:
    """A table of all methods."""
    with ExitStack() as stack:
        running = {}
        for name in dict.fromkeys(("fedavg", *names)):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            job = job_maker(name, maker.federation, options.epochs).make(folder)
            engine = WorkerEngine(job, options.workers, print)
            stack.callback(engine.close)
            running[name] = Running(Server(job, engine), engine)
            running[name].measure(1)
        ratios: dict[str, list[float]] = {name: [] for name in names}
        before = running["fedavg"].measure(options.rounds)
        for _ in range(options.repeats):
            for name in names:
                ours, after = running[name].measure(options.rounds), running["fedavg"].measure(options.rounds)
                ratios[name].append(2 * ours / (before + after))
                print(f"  fedavg {before:.2f} s, {name} {ours:.2f} s, {after:.2f} s", file=sys.stderr, flush=True)
                before = after
    print("| method | CPU of a round / fedavg | lowest to highest | at most |\n|---|---|---|---|")
    for name, found in ratios.items():
        span = f"{min(found):.3f} to {max(found):.3f}"
        print(f"| {name} | {median(found):.3f} | {span} | {TARGETS.get(name.split()[0], '')} |")


# -- one step ----------------------------------------------------------------------------------------------------------
class Steps:
    """Steps on one batch, as a client takes them."""

    def __init__(self, maker: JobMaker, folder: Path) -> None:
        job = maker.make(folder)
        self.engine = InlineEngine(job)
        self.context: ClientContext = self.engine.runtime.begin(Server(job, self.engine).build_request("train", 1), 0)
        self.context.hooks = StepHooks.of(job.method, job.method.parts)
        self.context.named = {name: p for name, p in self.context.model.named_parameters() if p.requires_grad}
        self.context.optimizer = make_optimizer(job.settings, list(self.context.named.values()), 0.01)
        rows = self.context.rows[:BATCH]
        source = job.federation.source
        self.context.inputs, self.context.labels = source.batch(source.train, rows), source.train.y[rows]

    def seconds(self, count: int) -> float:
        """Processor seconds of one step, the mean of some."""
        began = time.process_time()
        for _ in range(count):
            gradient_step(self.context)
        return (time.process_time() - began) / count


def compare_steps(federation: Any, repeats: int) -> None:
    """A step with LRA beside a plain one."""
    prepare_process()  # steps as a worker takes them, with freed memory kept
    with tempfile.TemporaryDirectory() as folder:
        plain, lra = (Steps(job_maker(name, federation, 1), Path(folder)) for name in ("fedavg", "fedavg+lra"))
        for steps in (plain, lra):
            steps.seconds(20)
        pairs = [(plain.seconds(20), lra.seconds(20)) for _ in range(5 * repeats)]
        plain.engine.close()
    ratio = median(second / first for first, second in pairs)
    first, second = (1e3 * median(times) for times in zip(*pairs, strict=True))
    print(f"\none step of {BATCH} images: plain {first:.2f} ms, with LRA {second:.2f} ms, {ratio:.3f} times as much")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=1, help="rounds in a row, measured together")
    parser.add_argument("--epochs", type=int, default=5, help="local epochs")
    parser.add_argument("--samples", type=int, default=CLIENTS * BATCH, help="random images")
    parser.add_argument("--data", default="random", help="random, or a data source such as fashion-mnist")
    parser.add_argument("--methods", default=METHODS, help="joined by commas; empty: only the step")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    maker = job_maker("fedavg", make_data(options.data, options.samples), options.epochs)
    if options.methods:
        compare_rounds(options.methods.split(","), maker, options)
    compare_steps(maker.federation, options.repeats)


if __name__ == "__main__":
    main()
