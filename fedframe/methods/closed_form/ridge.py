"""Ridge regression on standardised features from sums alone, and its penalty by generalised cross-validation.

With z a feature, m and s the mean and deviation of each of its numbers over all clients, and x = (z - m) / s:
    A = sum x x',   B = sum x (y - n_c / n)',   (A + lambda n I) W = B,
    score of class c = w_c' x + n_c / n.
The intercept is not penalised. A and B follow from V and U of `sums.py`; the solution is that of the pooled data.
Golub, Heath, Wahba (Technometrics 1979): lambda minimises GCV = (|Y - Z W|^2 / n) / (1 - tr(H) / n)^2, which is the
error of leave-one-out with every sample's leverage replaced by the mean. With A = Q L Q' it follows for any lambda:
    tr(H) = 1 + sum l / (l + lambda n),   |Y - Z W|^2 = |Y|^2 - sum (2 w'b - w'A w).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedframe.methods.closed_form.cholesky import factored, mirror_, solve_factored, trace_of_inverse
from fedframe.methods.closed_form.sums import Sums

RIDGES: tuple[float, ...] = tuple(
    10.0 ** (tenths / 10) for tenths in range(-60, 11)
)  # of the diagonal of A, which is n
HALF_DECADE = 5  # steps in `RIDGES`
LARGEST_EIGH = 8192  # features: beyond, eigenvectors take more memory and time than a few Cholesky factors
# A feature whose deviation is below this share of its size is constant, up to the rounding of features to float32.
CONSTANT = 1e-6
# The same where the sums themselves were rounded to float32: its square is a variance that rounding alone can make of a
# constant, three halves of float32's epsilon, with room to spare. What is left of one would be no variance, but noise
# that correlates with all other noise: A would not be positive, and cross-validation would go astray.
CONSTANT_IN_SHORT = math.sqrt(4 * torch.finfo(torch.float32).eps)


@dataclass(frozen=True)
class Problem:
    """Least squares on standardised features: all that is needed of V and U."""

    gram: Tensor  # A (dim, dim); zero rows for features that never change
    cross: Tensor  # B (dim, classes)
    mean: Tensor  # m
    inverse_deviation: Tensor  # 1 / s; 0 for features that never change
    counts: Tensor  # n_c, times the samples' weights
    total: float  # n

    @property
    def spread(self) -> float:
        """Sum over classes of the squared distances of Y from its mean."""
        return float((self.counts - self.counts.square() / self.total).sum())

    def head(self, coefficients: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Weight (classes, dim) and bias of the same scores for features as they are."""
        weight = (coefficients * self.inverse_deviation[:, None]).T
        start = self.counts / self.total if bias is None else bias
        return weight, start - weight @ self.mean


def standardise(sums: Sums, shortened: bool = False) -> Problem:
    """The least-squares problem of these sums; `shortened` if they were rounded to float32 on their way."""
    v, u = sums.matrix(), sums.cross.double()
    total = float(v[-1, -1])
    if not total > 0:
        raise ValueError("sums of no samples")
    mean, raw = v[-1, :-1] / total, v.diagonal()[:-1] / total
    gram = v[:-1, :-1].addr_(mean, mean, alpha=-total)
    variance = gram.diagonal() / total
    changes = variance > (CONSTANT_IN_SHORT if shortened else CONSTANT) ** 2 * raw
    inverse = torch.where(changes, variance.clamp_min(1e-300).rsqrt(), 0.0)
    mirror_(gram.mul_(inverse[:, None]).mul_(inverse))  # which rounding has made all but symmetric
    cross = (u[:-1] - torch.outer(mean, u[-1])) * inverse[:, None]
    return Problem(gram, cross, mean, inverse, u[-1].clone(), total)


# -- the solution ------------------------------------------------------------------------------------------------------
def solve_ridge(gram: Tensor, cross: Tensor, penalty: float) -> Tensor:
    """W with (A + penalty I) W = B; with a penalty below rounding the smallest of the least-squares solutions.

    A is used as working memory, and is afterwards what it was.
    """
    if penalty > 0:
        with factored(gram, penalty) as factor:
            if factor is not None:
                return solve_factored(factor, cross)
    values, vectors = torch.linalg.eigh(gram)
    kept = values > max(float(values[-1]), 0.0) * len(values) * torch.finfo(values.dtype).eps
    inverse = torch.where(kept, 1 / (values.clamp_min(0) + penalty), 0.0).nan_to_num(0.0, 0.0, 0.0)
    smallest: Tensor = vectors @ (inverse[:, None] * (vectors.mT @ cross))
    return smallest


def memory_needed(dim: int) -> int:
    """About how many bytes sums and solution take: A and the triangle of V, or what eigenvectors take."""
    return (12 if dim > LARGEST_EIGH else 32) * dim**2


# -- the penalty -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Fit:
    """A solution and how much it adapts to single samples."""

    coefficients: Tensor  # W (dim, classes), of standardised features
    ridge: float  # lambda: the penalty as a share of A's diagonal
    leverage: float  # tr(H) / n, the mean over samples of how far its own label moves a sample's score


def criterion(problem: Problem, residual: float, freedom: float) -> float:
    """GCV from the squared residuals and tr(H); infinite where nothing is left of either but rounding."""
    left = 1 - freedom / problem.total
    return residual / problem.total / left**2 if left > 1e-9 and residual > 0 else math.inf


class ByEigenvalues:
    """All ridges from one eigendecomposition."""

    def __init__(self, problem: Problem) -> None:
        values, self.vectors = torch.linalg.eigh(problem.gram)
        self.problem, self.values = problem, values.clamp_min(0)
        self.rotated = self.vectors.mT @ problem.cross
        self.squares = self.rotated.square().sum(1)

    def freedom(self, ridge: float) -> float:
        """tr(H)."""
        return 1 + float((self.values / (self.values + ridge * self.problem.total)).sum())

    def gcv(self, ridge: float) -> float:
        """The criterion."""
        penalised = self.values + ridge * self.problem.total
        explained = (self.squares * (2 / penalised - self.values / penalised.square())).sum()
        return criterion(self.problem, self.problem.spread - float(explained), self.freedom(ridge))

    def fit(self, ridge: float) -> Fit:
        """The solution."""
        w = self.vectors @ (self.rotated / (self.values + ridge * self.problem.total)[:, None])
        return Fit(w, ridge, self.freedom(ridge) / self.problem.total)


class ByCholesky:
    """Every ridge from a factor of its own, F F' = A + lambda n I: tr(H) = 1 + dim - lambda n tr (F F')^-1.

    Of all solutions the best is kept.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.seen: dict[float, float] = {}
        self.best: Fit | None = None

    def gcv(self, ridge: float) -> float:
        """The criterion."""
        if ridge not in self.seen:
            found, fit = self.solve(ridge)
            if fit is not None and found <= min(self.seen.values(), default=math.inf):
                self.best = fit
            self.seen[ridge] = found
        return self.seen[ridge]

    def fit(self, ridge: float) -> Fit:
        """The solution."""
        self.gcv(ridge)
        found = self.best if self.best is not None and self.best.ridge == ridge else self.solve(ridge)[1]
        return found or Fit(solve_ridge(self.problem.gram, self.problem.cross, ridge * self.problem.total), ridge, 0.0)

    def solve(self, ridge: float) -> tuple[float, Fit | None]:
        """The criterion and the solution; none where the ridge is below rounding."""
        problem, dim = self.problem, len(self.problem.gram)
        penalty = ridge * problem.total
        if not penalty > 0:
            return math.inf, None
        with factored(problem.gram, penalty) as factor:
            if factor is None:
                return math.inf, None
            w, inverse = solve_factored(factor, problem.cross), trace_of_inverse(factor)
        # w'(A + penalty I) w = w'b, so that 2 w'b - w'A w = w'b + penalty w'w.
        residual = problem.spread - float((w * problem.cross).sum() + penalty * w.square().sum())
        freedom = 1 + dim - penalty * inverse
        return criterion(problem, residual, freedom), Fit(w, ridge, freedom / problem.total)


def descend(score: Callable[[float], float]) -> float:
    """A ridge near the best where every look is expensive: downhill by half decades, from one in a hundred."""
    here = RIDGES.index(0.01)  # where images and tables tend to end
    while True:
        near = [i for i in (here, here - HALF_DECADE, here + HALF_DECADE) if 0 <= i < len(RIDGES)]
        best = min(near, key=lambda i: score(RIDGES[i]))
        if best == here:
            return RIDGES[here]
        here = best


def fit_ridge(problem: Problem, ridge: float | None = None) -> Fit:
    """The solution with this ridge; without one, with the one that GCV prefers."""
    if ridge is not None:
        return ByCholesky(problem).fit(ridge)
    if len(problem.gram) <= LARGEST_EIGH:
        by_eigenvalues = ByEigenvalues(problem)
        return by_eigenvalues.fit(min(RIDGES, key=by_eigenvalues.gcv))
    by_cholesky = ByCholesky(problem)
    return by_cholesky.fit(descend(by_cholesky.gcv))
