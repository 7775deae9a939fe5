"""How long should FedLoGe's frozen class vectors be? FedAvg and FedLoGe by length, with and without BatchNorm.

`python -m benchmarks.fedloge_length --data-dir DATA`: a tenth of Fashion-MNIST with a long tail, three seeds, half an
hour of one core; goes on where it was stopped. Scores are the shared model's on the (balanced) test set after GA-FR.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from torch import nn

import fedframe

LENGTHS = (0.1, 1.0, 3.0)
NETS = {"convnet": "without BatchNorm", "benchmarks/fedloge_length.py:normed_convnet": "with BatchNorm"}
STEPS = ((8, 0.03), (32, 0.03), (8, 0.01))  # batch and lr
SHARED = {
    "data": "fashion-mnist",
    "data_share": 0.1,
    "partition": "longtail:100+dirichlet:0.5",
    "clients": 20,
    "rounds": 15,
    "epochs": 5,
    "momentum": 0.5,
    "eval_every": 0,
    "personal": False,
}


def normed_convnet(shape: tuple[int, int, int]) -> nn.Module:
    """`convnet` for 28 x 28 pixels with BatchNorm after every layer."""
    return nn.Sequential(
        *(nn.Conv2d(shape[0], 6, 5, padding=2, bias=False), nn.BatchNorm2d(6), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(6, 16, 5, bias=False), nn.BatchNorm2d(16), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(400, 120, bias=False), nn.BatchNorm1d(120), nn.ReLU()),
        *(nn.Linear(120, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/fedloge-length"))
    asked = parser.parse_args()
    methods = ["fedavg", *(f"fedloge?sse_c.norm={length:g}" for length in LENGTHS)]
    print(f"| net | batch, lr | {' | '.join(methods)} |")
    for net, words in NETS.items():
        for batch, lr in STEPS:
            out = asked.out / f"{words.replace(' ', '-')}-{batch}-{lr}"
            settings = {**SHARED, "model": net, "batch": batch, "lr": lr, "data_dir": asked.data_dir}
            found = fedframe.compare(methods, seeds=asked.seeds, out=out, progress=False, **settings)
            means = [statistics.fmean(values_of(found, row.label)) for row in found.plan.rows]
            print(f"| {words} | {batch}, {lr} | {' | '.join(f'{mean:.3f}' for mean in means)} |", flush=True)


def values_of(found: fedframe.Comparison, label: str) -> list[float]:
    return [float(outcome.summary["scores"]["generic"]["final"]) for outcome in found.outcomes[label]]


if __name__ == "__main__":
    main()
