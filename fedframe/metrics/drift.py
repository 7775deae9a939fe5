"""Client drift: clients' updates compared with the global step, and their classifiers with each other.

FedRANE (Liao et al., MM 2023), Fig. 3: the cosine between each client's update and the step of the shared model, client
by round. SphereFed (Dong et al., ECCV 2022), for the class vectors w_c^k of clients k:
    E_{c, k1 != k2} [ cos(w_c^k1, w_c^k2) ]             (Eq. 2)
    E_{c, k1 != k2} [ | ||w_c^k1|| - ||w_c^k2|| | ]     (Eq. 3)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def update_cosines(updates: Sequence[Tensor], step: Tensor) -> tuple[list[float | None], list[float]]:
    """The cosine of every update with the step, None where one of them is zero; and the updates' norms."""
    wide = step.double()
    length = float(wide.norm())
    cosines: list[float | None] = []
    norms: list[float] = []
    for update in updates:
        each = update.double()
        norms.append(float(each.norm()))
        whole = norms[-1] * length
        cosines.append(max(-1.0, min(1.0, float(each @ wide) / whole)) if whole else None)
    return cosines, norms


def classifier_cosines(vectors: Tensor) -> Tensor:
    """Eq. 2 before the mean over pairs: for each pair of clients, the mean cosine over classes.

    Vectors are (clients, classes, dim). Classes whose vector is zero at one of the two do not count; without any the
    cosine is NaN.
    """
    norms = vectors.norm(dim=2)
    unit = vectors / norms.clamp_min(torch.finfo(vectors.dtype).tiny)[:, :, None]
    counted = (norms > 0).to(vectors.dtype)
    flat = (unit * counted[:, :, None]).flatten(1)
    cosines: Tensor = flat @ flat.T / (counted @ counted.T)
    return cosines


def classifier_norm_differences(vectors: Tensor) -> Tensor:
    """Eq. 3 before the mean over pairs: for each pair of clients, the mean difference of the norms over classes."""
    norms = vectors.norm(dim=2)
    return torch.stack([(norms - row).abs().mean(1) for row in norms])


def mean_over_pairs(matrix: Tensor) -> float | None:
    """The mean over all pairs of different clients; None with fewer than two, or where it is not defined."""
    count = len(matrix)
    if count < 2:
        return None
    mean = float(matrix[~torch.eye(count, dtype=torch.bool)].mean())
    return mean if math.isfinite(mean) else None
