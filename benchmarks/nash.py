"""How fast and how exact the Nash bargain is: `python -m benchmarks.nash`.

First M p = 1/p alone on updates of many kinds, then a whole merge (Gram matrix, bargain, combination) beside the plain
mean of the same updates.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from fedframe.core.aggregation import RunningMean
from fedframe.methods.parts.nash import bargain, combination, gram_matrix

DIM = 1000


def seconds(context: Callable[[], object], times: int = 7) -> float:
    context()
    found = []
    for _ in range(times):
        began = time.perf_counter()
        context()
        found.append(time.perf_counter() - began)
    return median(found)


def cases(clients: int) -> dict[str, Tensor]:
    """Updates as columns."""
    torch.manual_seed(clients)
    common = torch.randn(DIM, 1).double()
    noise = torch.randn(DIM, clients).double()
    half = noise[:, : clients // 2]
    near = torch.cat([half, -half], 1)
    return {
        "something in common": noise + common,
        "independent": noise,
        "lengths 1e-4 to 1e4": (noise + 0.3 * common) * torch.logspace(-4, 4, clients).double(),
        "duplicates": noise[:, : clients // 2].repeat(1, 2),
        "singular (5 dimensions)": noise[:5] + 3 * torch.eye(5, 1).double(),
        "as many as dimensions": noise[:clients],
        "nearly conflicting (1e-2)": near + 1e-2 * common,
        "nearly conflicting (1e-4)": near + 1e-4 * common,
        "no agreement: opposite": near,
        "no agreement: 5 dimensions": noise[:5],
    }


def main() -> None:
    torch.set_num_threads(1)
    print("| clients | updates | agreed | iterations | residual | time (ms) |\n|---|---|---|---|---|---|")
    for clients in (10, 100, 200):
        for name, updates in cases(clients).items():
            gram = updates.T @ updates
            found = bargain(gram)
            took = 1e3 * seconds(lambda gram=gram: bargain(gram))  # type: ignore[misc]
            agreed = "yes" if found.agreed else "no"
            print(f"| {clients} | {name} | {agreed} | {found.iterations} | {found.residual:.0e} | {took:.1f} |")
    print("\n| clients | weights | mean (ms) | bargained merge (ms) |\n|---|---|---|---|")
    for clients, size in ((20, 100_000), (20, 1_000_000), (100, 100_000), (100, 1_000_000)):
        kept = list(torch.randn(clients, size) + torch.randn(size))

        def mean(kept: list[Tensor] = kept, size: int = size) -> Tensor:
            running = RunningMean(size)
            for update in kept:
                running.add(update, 1.0)
            return running.mean()

        def merge(kept: list[Tensor] = kept) -> Tensor:
            return combination(kept, bargain(gram_matrix(kept)).p)

        print(f"| {clients} | {size:,} | {1e3 * seconds(mean, 3):.0f} | {1e3 * seconds(merge, 3):.0f} |")


if __name__ == "__main__":
    main()
