"""Memory of merging many large updates: `python -m benchmarks.merging [mean|gne] [--clients 100] [--millions 25]`.

One process merges updates that are drawn one after the other, as they would come from workers, and reports the most
that it held (peak resident memory) above what it held with a single update, in megabytes and in models.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import torch

from fedframe.core.aggregation import RunningMean
from fedframe.core.kept_updates import KeptUpdates
from fedframe.methods.parts.nash import bargain, combination, gram_matrix


def peak() -> float:
    """Megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rule", choices=["mean", "gne"])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--millions", type=float, default=25)
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = int(options.millions * 1e6)
    update = torch.randn(size)
    before, began = peak(), time.process_time()
    drawn = 0.0
    with tempfile.TemporaryDirectory() as folder:
        mean, kept = RunningMean(size if options.rule == "mean" else 0), KeptUpdates(Path(folder))
        for _ in range(options.clients):
            start = time.process_time()
            update.normal_().add_(0.1)
            drawn += time.process_time() - start
            if options.rule == "mean":
                mean.add(update, 1.0)
            else:
                kept.add(update.clone())
        if options.rule == "mean":
            mean.mean()
        else:
            combination(kept.updates, bargain(gram_matrix(kept.updates)).p)
    seconds = time.process_time() - began - drawn
    extra, model = peak() - before, 4 * size / 2**20
    print(f"{options.rule}, {options.clients} updates of {options.millions:g} million weights ({model:.0f} MB each):")
    print(
        f"{extra:.0f} MB ({extra / model:.1f} models) above one update; {seconds:.1f} CPU seconds without the drawing"
    )


if __name__ == "__main__":
    main()
