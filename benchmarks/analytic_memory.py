"""Peak memory of the closed form for many features: `python -m benchmarks.analytic_memory --features 8192`.

Sums of random features are streamed as at a client, rounded to be sent, added up and solved as at the server, with a
given ridge (beyond 8,192 features generalised cross-validation tries a few in the same memory). The peak memory of the
process, before and after, and the largest error of the equations relative to their right-hand sides go into
docs/results/analytic-memory.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import torch

from benchmarks.origin import command_line, origin
from fedframe.methods.closed_form.ridge import fit_ridge, standardise
from fedframe.methods.closed_form.sums import Sums, stream_sums
from fedframe.util.files import read_json, write_json

RESULTS = Path("docs/results/analytic-memory.json")
RIDGE, SEED = 0.01, 0


def peak_gb() -> float:
    """The most memory that this process has had, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=int, default=8192)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    before, began = peak_gb(), time.process_time()
    generator = torch.Generator().manual_seed(SEED)

    def batches() -> object:
        for start in range(0, given.samples, 500):
            count = min(500, given.samples - start)
            yield (
                torch.randn(count, given.features, generator=generator).relu_(),
                torch.randint(given.classes, (count,), generator=generator),
            )

    total = Sums.zeros(given.features, given.classes)
    total.add_(stream_sums(batches(), given.features, given.classes).rounded())  # type: ignore[arg-type]
    at_client = peak_gb()
    problem = standardise(total, shortened=True)
    del total
    fit = fit_ridge(problem, RIDGE)
    at_server = peak_gb()
    left = problem.gram @ fit.coefficients + RIDGE * problem.total * fit.coefficients - problem.cross
    found = {
        "command": command_line(),
        **origin(),
        "seed": SEED,
        "features": given.features,
        "classes": given.classes,
        "samples": given.samples,
        "gb_before": round(before, 2),
        "gb_sums": round(at_client, 2),
        "gb_solved": round(at_server, 2),
        "relative_error": float(left.abs().max() / problem.cross.abs().max()),
        "cpu_seconds": round(time.process_time() - began, 1),
    }
    print(json.dumps(found))
    about = "python -m benchmarks.analytic_memory --features FEATURES --classes CLASSES --samples SAMPLES"
    runs = read_json(given.results)["runs"] if given.results.exists() else []
    same = {name: found[name] for name in ("features", "classes", "samples")}
    others = [each for each in runs if {name: each[name] for name in same} != same]
    write_json(given.results, {"about": about, "runs": [*others, found]})


if __name__ == "__main__":
    main()
