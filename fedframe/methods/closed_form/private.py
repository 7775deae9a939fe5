"""V and U as one release under differential privacy: features of bounded length, Gaussian noise, and a ridge that
follows from the noise alone.

Sums with noise are those of Dwork et al. (Analyze Gauss, STOC 2014) and Wang (AdaSSP, UAI 2018). With x a sample's
features, cut to the length `LONGEST`, and z = (x, 1):
    |z|^2 <= L = LONGEST^2 + 1,   |z z'|_F = |z|^2 <= L,   |z y'|_F = |z| <= sqrt(L).
V is symmetric: its triangle with sqrt(2) on what is off the diagonal has the length of V. So one sample more or less
moves the vector
    r = (sqrt(s) triangle(V) / L,   sqrt(1 - s) U / sqrt(L)),   s = `SHARE`,
by at most sqrt(s + 1 - s) = 1. Noise of deviation sigma on every number of r is one Gaussian release with the noise
multiplier sigma. If it is whole clients that are to be hidden, a client sends the mean of r over its samples in the
place of the sum, which is no longer than 1 either: one client more or less moves the sum over clients by at most 1.

In V that noise has the deviation t = sigma L / sqrt(2 s) off the diagonal (sqrt(2) t on it), and eigenvalues of such a
matrix of d rows end at 2 t sqrt(d) (Wigner's law), beyond which they reach by more than 3 t hardly ever. The ridge is
that: penalty = t (2 sqrt(d) + 3). It depends on no data, directions that are all noise are shrunk, and V + penalty I is
positive; should it not be, what lies below t is raised to t.

Differs from AdaSSP in: its ridge also looks at the smallest eigenvalue, which costs a third of the budget; here V and U
share one release.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedframe.methods.closed_form.ridge import Fit
from fedframe.methods.closed_form.sums import Sums
from fedframe.util.triangles import triangle_size

LONGEST = 2.0  # length of a sample's features, beside the constant 1
LARGEST = LONGEST**2 + 1  # L
SHARE = 0.5  # s: of the release's length, how much belongs to V


def bounded(features: Tensor) -> Tensor:
    """Rows no longer than `LONGEST`."""
    lengths: Tensor = torch.linalg.vector_norm(features, dim=1, keepdim=True)
    return features * (LONGEST / lengths.clamp_min(LONGEST))


def _weights(rows: int) -> Tensor:
    """sqrt(2) off the diagonal of a packed triangle, 1 on it."""
    weights = torch.full((triangle_size(rows),), math.sqrt(2.0), dtype=torch.float64)
    weights[torch.arange(1, rows + 1) * torch.arange(2, rows + 2) // 2 - 1] = 1.0
    return weights


def to_release(sums: Sums) -> Tensor:
    """r: one sample more or less, of bounded features, moves it by at most 1."""
    v = sums.second.double() * _weights(len(sums.cross)) * (math.sqrt(SHARE) / LARGEST)
    u = sums.cross.double().flatten() * math.sqrt((1 - SHARE) / LARGEST)
    return torch.cat([v, u])


def from_release(release: Tensor, rows: int, classes: int) -> Sums:
    """V and U that a release stands for."""
    v, u = release.double().split([triangle_size(rows), rows * classes])  # type: ignore[no-untyped-call]
    second = v / _weights(rows) * (LARGEST / math.sqrt(SHARE))
    return Sums(second, u.reshape(rows, classes) * math.sqrt(LARGEST / (1 - SHARE)))


def noise_ridge(deviation: float, rows: int) -> float:
    """The penalty for noise of this deviation on every number of the release."""
    return noise_in_v(deviation) * (2 * math.sqrt(rows) + 3)


def noise_in_v(deviation: float) -> float:
    """t: deviation of the noise on an entry of V off the diagonal."""
    return deviation * LARGEST / math.sqrt(2 * SHARE)


def solve_noisy(sums: Sums, deviation: float, penalty: float | None = None) -> tuple[Fit, Tensor]:
    """The classifier and its bias from sums with noise of this deviation; `ridge` of the result is the penalty itself.

    Scores are 1 / C for a sample of which nothing is known: targets are taken relative to that.
    """
    v, u = sums.matrix(), sums.cross.double()
    rows, classes = u.shape
    u = u - v[:, -1:] / classes
    ridge = noise_ridge(deviation, rows) if penalty is None else penalty
    values, vectors = torch.linalg.eigh(v)
    raised = (values + ridge).clamp_min(max(noise_in_v(deviation), 1e-300))
    w = vectors @ ((vectors.mT @ u) / raised[:, None])
    freedom = float((values.clamp_min(0) / raised).sum())
    total = max(float(v[-1, -1]), 1.0)
    return Fit(w[:-1], ridge, min(freedom / total, 1.0)), w[-1] + 1 / classes
