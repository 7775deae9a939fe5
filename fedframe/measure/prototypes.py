"""Whether clients mean the same by a class: how alike their mean features of it are.

A client's prototype of class c is the mean feature of its samples of c (FedProto, Tan et al., 2022, Eq. 3). The measure
is the mean cosine between the prototypes of one class at two clients, over all pairs of clients that hold it and then
over classes. Cosines are taken around the mean of all classes: features behind a ReLU all point into one corner, so
that without it even different classes would look alike.
"""

from __future__ import annotations

import torch
from torch import Tensor


def consistency(prototypes: Tensor, held: Tensor) -> float | None:
    """1 where all clients agree; prototypes (clients, classes, dim), held (clients, classes).

    None if no class is held by two clients, or all there is is one class.
    """
    held = held.bool()
    wide = prototypes.double() * held[:, :, None]
    holders = held.sum(0)
    seen = holders > 0
    if int(seen.sum()) < 2:
        return None
    centre = (wide.sum(0)[seen] / holders[seen, None]).mean(0)
    away = (wide - centre) * held[:, :, None]
    norms = away.norm(dim=2)
    counted = norms > 0
    unit = away / norms.clamp_min(torch.finfo(torch.float64).tiny)[:, :, None]
    m = counted.sum(0).double()
    pairs = m * (m - 1)
    # The cosines of all pairs of unit vectors add up to the squared length of their sum, less that of each with itself.
    cosines = (unit.sum(0).square().sum(1) - m)[pairs > 0] / pairs[pairs > 0]
    return float(cosines.mean()) if len(cosines) else None
