"""Which learning rate does SphereFed's squared error want, by the number of classes? With and without BatchNorm.

`python -m benchmarks.sphere_rates`: 10 and 100 Gaussian classes in 64 dimensions, 6,000 training samples, 20 clients,
`dirichlet:0.1`, ten rounds of five epochs, one seed; some minutes of one core. The shared model's accuracy is printed
under the frozen classifier and after FFC, which hides a net that has hardly learnt.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

import fedframe

TRAIN, TEST, DIM, SPREAD = 6_000, 2_000, 64, 1.5  # SPREAD: deviation of a class around its mean, means having 1
RATES = {10: (0.1, 0.5, 5.0), 100: (0.5, 2.0, 5.0, 10.0, 20.0)}
SHARED: dict[str, Any] = {
    "partition": "dirichlet:0.1",
    "clients": 20,
    "rounds": 10,
    "epochs": 5,
    "batch": 32,
    "eval_every": 0,
    "personal": False,
    "workers": 1,
    "progress": False,
}
NETS = {"mlp:256x256": "`mlp`", "benchmarks/sphere_rates.py:normed_mlp": "with BatchNorm"}


def normed_mlp(shape: tuple[int, ...]) -> nn.Module:
    """`mlp:256x256` with BatchNorm."""
    first, second = nn.Linear(shape[0], 256), nn.Linear(256, 256)
    return nn.Sequential(first, nn.BatchNorm1d(256), nn.ReLU(), second, nn.BatchNorm1d(256), nn.ReLU())


def gaussians(classes: int) -> dict[str, Any]:
    """Classes around random means, as many samples of each."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(classes, DIM))
    labels = {name: np.arange(count) % classes for name, count in (("train", TRAIN), ("test", TEST))}
    found: dict[str, Any] = {f"y_{name}": y for name, y in labels.items()}
    for name, y in labels.items():
        found[f"x_{name}"] = (means[y] + SPREAD * rng.normal(size=(len(y), DIM))).astype(np.float32)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/sphere-rates"))
    asked = parser.parse_args()
    print("| classes | `lr` | net | before FFC | after |\n|---|---|---|---|---|")
    for classes, rates in RATES.items():
        data = gaussians(classes)
        for net, words in NETS.items():
            for rate in rates:
                out = asked.out / f"{classes}-{rate:g}-{words.strip('`').replace(' ', '-')}"
                found = fedframe.run("spherefed", data=data, model=net, lr=rate, out=out, **SHARED).scores["generic"]
                print(f"| {classes} | {rate:g} | {words} | {found['last']:.3f} | {found['final']:.3f} |", flush=True)


if __name__ == "__main__":
    main()
