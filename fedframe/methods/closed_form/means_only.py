"""The second moments of features from class means alone: C d numbers from a client instead of d^2 / 2.

Guo et al., FedCOF, NeurIPS 2025: a client sends, for every class, how many samples it has and their mean. Means of n
samples of one distribution scatter about its mean with 1 / n of its covariance, so
    S_c = 1 / (K_c - 1) sum_k n_kc (m_kc - m_c)(m_kc - m_c)'
estimates the covariance of class c from the means of the K_c clients that have it, without bias if all clients' samples
of a class come from one distribution. V is then sum_c (n_c - 1) S_c + n_c m_c m_c'. The estimate needs each client's
own means (no secure aggregation), and has at most as many dimensions as there are clients and classes: shrinkage
towards a multiple of the identity makes up for the rest.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedframe.methods.closed_form.sums import Sums
from fedframe.util.triangles import pack


def sums_from_crosses(crosses: Tensor) -> Sums:
    """V and U as estimated from every client's U (clients, dim + 1, classes), which holds its class sums and counts."""
    counts = crosses[:, -1]
    means = (crosses[:, :-1] / counts.clamp_min(1.0)[:, None]).mT
    return sums_from_means(counts, means)


def sums_from_means(counts: Tensor, means: Tensor, shrinkage: float = 0.1) -> Sums:
    """V and U as estimated from counts (clients, classes) and means (clients, classes, dim).

    The covariance within classes, pooled over classes, is mixed with `shrinkage` parts of the identity times its mean
    variance. U and the class counts are exact.
    """
    counts, means = counts.double(), means.double()
    dim, classes = means.shape[2], counts.shape[1]
    sums = (counts[:, :, None] * means).sum(0)  # (classes, dim), exact
    totals = counts.sum(0)
    centres = sums / totals.clamp_min(1.0)[:, None]
    second = torch.zeros(dim + 1, dim + 1, dtype=torch.float64)
    within = second[:dim, :dim]  # the only matrix of this size
    freedom, samples = 0.0, 0.0
    for c in range(classes):
        holders = counts[:, c] > 0
        apart = (means[holders, c] - centres[c]) * counts[holders, c].sqrt()[:, None]
        within.addmm_(apart.T, apart)
        freedom += max(float(holders.sum()) - 1, 0.0)
        samples += max(float(totals[c]) - 1, 0.0)
    variance = float(within.diagonal().mean()) / max(freedom, 1.0)
    within.mul_((1 - shrinkage) * samples / max(freedom, 1.0))
    within.diagonal().add_(shrinkage * samples * variance)
    within.addmm_((centres * totals[:, None]).T, centres)
    second[dim, :dim] = sums.sum(0)
    second[dim, dim] = totals.sum()
    cross = torch.cat([sums.T, totals[None]])
    return Sums(pack(second), cross)  # which reads the lower triangle
