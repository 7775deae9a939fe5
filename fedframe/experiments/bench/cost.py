"""How long a scene takes: samples that are trained on and scored, times what a step of its net takes on this machine.

A step is measured once per net, shape and batch size (about a second) and kept beside the runs. When a scene is
finished, the ratio of what it took to what was expected is kept as well, and later estimates are multiplied by it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from fedframe.data.partition import read_partition
from fedframe.errors import DataError
from fedframe.experiments.bench.rows import UNTRAINED, BenchRow
from fedframe.experiments.bench.scene import Scene, TuningSpec
from fedframe.experiments.papers.scale import SIZES
from fedframe.methods.tuning import relative_cost
from fedframe.models import build_net, default_net
from fedframe.util.files import read_json, write_json

SHAPES: dict[str, tuple[int, ...]] = {
    "digits": (1, 8, 8),
    "mnist": (1, 28, 28),
    "fashion-mnist": (1, 28, 28),
    "emnist-letters": (1, 28, 28),
    "cifar10": (3, 32, 32),
    "cifar100": (3, 32, 32),
    "tiny-imagenet": (3, 64, 64),
}
TEST_SAMPLES = 10_000  # of the public sets
FORWARD = 0.35  # cost of a prediction relative to a step of training
FINE_TUNING = 5  # epochs of the usual personal stage
START = 0.3  # processor seconds of a run beside its steps: data, net, files
STEPS, WARM_UP, SECONDS = 30, 3, 0.6  # of a measurement: at most so many steps, or so long
SPEED = "speed.json"


def train_samples(scene: Scene, settings: Mapping[str, Any]) -> float | None:
    """What all clients together train on; None if that is not known before the data are read."""
    known = SIZES.get(str(settings["data"]))
    samples = scene.samples if scene.samples is not None else known[0] if known else None
    if samples is None:
        return None
    found = samples * float(settings.get("data_share", 1.0))
    partition = str(settings.get("partition", "auto"))
    imbalance = None if partition == "auto" else read_partition(partition).imbalance
    if imbalance is not None and known:
        classes = known[1]
        found *= sum(imbalance ** (-c / max(1, classes - 1)) for c in range(classes)) / classes
    own_test = settings.get("local_test", 0.25)
    if not isinstance(own_test, str):
        found *= 1 - own_test
    new = float(settings.get("new_clients", 0.0))
    if new >= 1:
        new = new / settings["clients"] if settings.get("clients") else 0.0
    return found * (1 - new)


def run_samples(scene: Scene, settings: Mapping[str, Any], rounds: int, final: bool) -> float | None:
    """Samples of training in one run, with those that are only scored counted by what they cost."""
    samples = train_samples(scene, settings)
    if samples is None:
        return None
    epochs = int(settings["epochs"])
    trained = rounds * float(settings.get("participation", 1.0)) * samples * epochs
    every = int(settings.get("eval_every", 1))
    evaluations = (rounds // every if every else 0) + 1
    tests = min(TEST_SAMPLES, samples) + samples / 3 if final else samples / 4  # the clients' own are scored as well
    personal = FINE_TUNING * samples if final and settings.get("personal", True) else 0.0
    return trained + FORWARD * evaluations * tests + personal


def planned_rounds(spec: TuningSpec, rounds: int) -> list[int]:
    """The rounds of all tuning runs of one row, if its grid need not grow."""
    rungs, count, found = spec.rungs(rounds), len(spec.rates), []
    reached = rungs[0]
    for rung in rungs:
        if rung != rungs[0]:
            count = (count + 1) // 2 if count > 2 else 1
        if count < 2:
            break
        found += [rung] * count
        reached = rung
    return (found + [reached] * spec.refine) * spec.seeds


def estimate(scene: Scene, rows: Sequence[BenchRow], speed: Speed) -> float | None:
    """Processor seconds of a scene; None where the size of its data is not known."""
    total = 0.0
    for case in scene.case_names:
        settings = scene.problem(case)
        shape = scene.shape or SHAPES.get(str(settings["data"]))
        if shape is None or train_samples(scene, settings) is None:
            return None
        second = speed.seconds_per_sample(str(settings.get("model", "auto")), shape, int(settings["batch"]))
        for each in rows:
            rounds = int(each.row.settings.get("rounds") or settings["rounds"])
            idle = each.row.settings.get("steps") == UNTRAINED["steps"]
            tuned = each.tuned and not each.like
            runs = [(r, False) for r in planned_rounds(scene.tuning, rounds)] if tuned else []
            for count, final in [*runs, *[(rounds, True)] * scene.seeds]:
                samples = 0.0 if idle else run_samples(scene, settings, count, final) or 0.0
                total += START + samples * second * relative_cost(each.row.method)
    return total * speed.ratio(scene.name)


class Speed:
    """What a step takes on this machine, measured once and kept in a file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / SPEED
        try:
            self.known: dict[str, Any] = read_json(self.path)
        except DataError:
            self.known = {}

    def seconds_per_sample(self, model: str, shape: Sequence[int], batch: int) -> float:
        """Processor seconds of training on one sample."""
        name = default_net(tuple(shape)) if model == "auto" else model
        key = f"{name} {'x'.join(map(str, shape))} batch {batch}"
        if key not in self.known:
            self.known[key] = measure(name, tuple(shape), batch)
            write_json(self.path, self.known)
        return float(self.known[key])

    def ratio(self, scene: str) -> float:
        """What runs took relative to what was expected: of this scene, else the median of those that were run."""
        ratios: dict[str, float] = self.known.get("ratios", {})
        return ratios.get(scene) or (statistics.median(ratios.values()) if ratios else 1.0)

    def keep_ratio(self, scene: str, ratio: float) -> None:
        """Remember how good an estimate was."""
        self.known["ratios"] = {**self.known.get("ratios", {}), scene: round(ratio, 3)}
        write_json(self.path, self.known)


def measure(model: str, shape: tuple[int, ...], batch: int) -> float:
    """Processor seconds per sample of a few steps of SGD, with one thread as in a run's workers; their median."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            net = build_net(model, shape)
            head = torch.nn.Linear(int(net.dim), 10)  # type: ignore[arg-type]
            x, y = torch.randn(batch, *shape), torch.randint(10, (batch,))
        if len(shape) == 3:
            net, x = net.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)  # type: ignore[call-overload]
        weights = [*net.parameters(), *head.parameters()]
        optimizer = torch.optim.SGD(weights, lr=1e-3, momentum=0.9, fused=True)
        times: list[float] = []
        while len(times) < STEPS + WARM_UP and sum(times) < SECONDS:
            began = time.process_time()
            optimizer.zero_grad()
            F.cross_entropy(head(net(x)), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            times.append(time.process_time() - began)
        return statistics.median(times[WARM_UP:] or times) / batch
    finally:
        torch.set_num_threads(threads)
