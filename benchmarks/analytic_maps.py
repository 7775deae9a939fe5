"""What a feature map that knows nothing of the data costs: `python -m benchmarks.analytic_maps --data-dir DIR`.

Accuracy on training samples that are held out, never on test samples, with `analytic.map` fixed and data, the same
random directions in both, for three seeds. A line per fit goes to standard output, and all into
docs/results/analytic-maps.json.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from benchmarks.origin import command_line, origin
from fedframe.data import Source, load_source
from fedframe.methods.closed_form.ridge import fit_ridge, standardise
from fedframe.methods.closed_form.sums import stream_sums
from fedframe.models.feature_maps import Knows, Raw, make_map
from fedframe.util.files import write_json

RESULTS = Path("docs/results/analytic-maps.json")
# Samples that train, samples that are held out, and the number of features.
SIZES = {"digits": (1000, 400, None), "cifar10": (10_000, 5000, 2048), "fashion-mnist": (12_000, 6000, None)}


def batches(source: Source, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Samples as a map takes them, and their labels."""
    raw = Raw(source.input_shape)
    for some in rows.split(256):  # type: ignore[no-untyped-call]
        yield raw(source.batch(source.train, some)), source.train.y[some]


@torch.no_grad()
def held_out_accuracy(
    source: Source, train: Tensor, held_out: Tensor, width: int | None, knows: Knows, seed: int
) -> Any:
    """Fit a map of this kind and a classifier behind it; how it does on samples that were held out."""
    torch.manual_seed(seed)
    features = make_map(source.input_shape, math.prod(source.input_shape), width, knows)
    sums = torch.zeros(features.sums_size, dtype=torch.float64)
    for inputs, _ in batches(source, train) if features.sums_size else ():
        sums += features.sums(inputs)
    for name, tensor in features.fit(sums).items():
        getattr(features, name).copy_(tensor)
    embedded = ((features(inputs), labels) for inputs, labels in batches(source, train))
    problem = standardise(stream_sums(embedded, features.dim, len(source.classes)))
    fit = fit_ridge(problem)
    weight, bias = problem.head(fit.coefficients)
    hits = 0
    for inputs, labels in batches(source, held_out):
        hits += int(((features(inputs).double() @ weight.T + bias).argmax(1) == labels).sum())
    return {"features": features.dim, "accuracy": hits / len(held_out), "ridge": fit.ridge}


def main() -> None:
    """All data, seeds and maps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    found = []
    for data, (count, test, width) in SIZES.items():
        source = load_source(data, data_dir=given.data_dir, seed=0)
        order = torch.randperm(len(source.train), generator=torch.Generator().manual_seed(1))
        train, held_out = order[:count], order[count : count + test]
        for seed in range(3):
            for knows in get_args(Knows):
                began = time.process_time()
                fit = held_out_accuracy(source, train, held_out, width, knows, seed)
                line = {"data": data, "train": count, "held_out": len(held_out), "seed": seed, "map": knows, **fit}
                found.append({**line, "cpu_seconds": round(time.process_time() - began, 1)})
                print(json.dumps(found[-1]), flush=True)
    write_json(given.results, {"about": command_line(), **origin(), "fits": found})


if __name__ == "__main__":
    main()
