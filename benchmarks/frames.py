"""How long the fixed classifiers take on one core, and how even their angles are: `python -m benchmarks.frames`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from fedframe.errors import SettingError
from fedframe.models.frames import orthonormal, simplex_etf, sparse_etf

SPARSE = ((10, 64, 0.6), (10, 512, 0.6), (10, 512, 0.9), (100, 512, 0.6), (100, 512, 0.8), (1000, 2048, 0.6))
REFUSED = ((10, 64, 0.9), (100, 512, 0.95))


def angles(frame: Tensor) -> Tensor:
    """Of every pair of class vectors, in degrees."""
    unit = torch.nn.functional.normalize(frame.double())
    first, second = torch.triu_indices(len(unit), len(unit), 1)
    return torch.rad2deg(torch.arccos((unit @ unit.T)[first, second].clamp(-1, 1)))


def measure(what: str, make: Callable[[torch.Generator], Tensor], repeats: int) -> None:
    seconds = []
    for seed in range(repeats):
        generator = torch.Generator().manual_seed(seed)
        began = time.perf_counter()
        frame = make(generator)
        seconds.append(time.perf_counter() - began)
    found, norms = angles(frame), frame.double().norm(dim=1)
    zeros = float((frame == 0).double().mean())
    print(
        f"{what:34} {min(seconds):8.3f} to {max(seconds):7.3f} s   angle {float(found.mean()):8.4f}, "
        f"variance {float(found.var()):.1e} degrees^2   norm variance {float(norms.var()):.1e}   zeros {zeros:.4f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="of the small sizes; the largest is built once")
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    measure("warm-up", lambda g: sparse_etf(10, 64, 0.6, g), 1)
    for classes, dim in ((100, 512), (1000, 2048)):
        measure(f"orthonormal {classes} x {dim}", lambda g, c=classes, d=dim: orthonormal(c, d, g), 1)  # type: ignore[misc]
        measure(f"simplex ETF {classes} x {dim}", lambda g, c=classes, d=dim: simplex_etf(c, d, g), 1)  # type: ignore[misc]
    for classes, dim, sparsity in SPARSE:
        times = repeats if classes < 1000 else 1
        what = f"sparse ETF {classes} x {dim}, {sparsity}"
        measure(what, lambda g, c=classes, d=dim, s=sparsity: sparse_etf(c, d, s, g), times)  # type: ignore[misc]
    for classes, dim, sparsity in REFUSED:
        began = time.perf_counter()
        try:
            sparse_etf(classes, dim, sparsity, torch.Generator().manual_seed(0))
        except SettingError as error:
            print(f"refused after {time.perf_counter() - began:.2f} s: {error}", flush=True)


if __name__ == "__main__":
    main()
