"""Random numbers that depend on a seed and a purpose, and on nothing else."""

from __future__ import annotations

import zlib

import numpy as np


def generator(seed: int, purpose: str) -> np.random.Generator:
    """A fresh numpy generator: the same (seed, purpose) gives the same draws on every machine.

    One purpose never disturbs another: a different local test share leaves the partition as it was.
    """
    # crc32 instead of hash(): Python salts the hash of a text anew in every process.
    return np.random.default_rng([seed, zlib.crc32(purpose.encode())])
