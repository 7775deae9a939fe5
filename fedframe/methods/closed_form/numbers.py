"""Ridge regression of numbers from sums: U = sum z y' with real y, and the sums of squares of y beside it.

The solution is that of `ridge.py` with y instead of a class's indicator: n_c becomes the sum of y. What indicators
need not send is the sum of y^2, which generalised cross-validation needs for |Y - mean|^2. Numbers are learned in
standard deviations; in another unit, or around another mean, the model would be the same up to rounding, because the
intercept has no penalty and the best ridge does not depend on the scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedframe.methods.closed_form.personal import MUS, RidgeTowards
from fedframe.methods.closed_form.ridge import Problem, standardise
from fedframe.methods.closed_form.sums import Sums, stream_sums


@dataclass(frozen=True)
class NumberProblem(Problem):
    """Least squares for numbers: `counts` are their sums."""

    squares: Tensor  # sum of y^2 (outputs)

    @property
    def spread(self) -> float:
        """Sum over outputs of the squared distances of Y from its mean."""
        return float((self.squares - self.counts.square() / self.total).sum())


def number_problem(sums: Sums, squares: Tensor, shortened: bool = False) -> NumberProblem:
    """The least-squares problem of these sums; `shortened` if they were rounded to float32 on their way."""
    return NumberProblem(**vars(standardise(sums, shortened)), squares=squares.double())


def stream_numbers(batches: Iterable[tuple[Tensor, Tensor]], dim: int, outputs: int) -> tuple[Sums, Tensor]:
    """Sums, and sums of squares, over batches of features (n, dim) and numbers (n, outputs)."""
    cross = torch.zeros(dim + 1, outputs, dtype=torch.float64)
    squares = torch.zeros(outputs, dtype=torch.float64)

    def passing() -> Iterator[tuple[Tensor, Tensor]]:
        for features, numbers in batches:
            y = numbers.to("cpu", torch.float64)
            cross[:-1].addmm_(features.double().T, y)
            cross[-1] += y.sum(0)
            squares.add_(y.square().sum(0))
            yield features, torch.zeros(len(y), dtype=torch.int64)  # V is the same whatever is predicted

    return Sums(stream_sums(passing(), dim, 1).second, cross), squares


@dataclass(frozen=True)
class PersonalRegression:
    """What a client found best for itself."""

    weight: Tensor  # (outputs, dim), of standardised features
    bias: Tensor  # (outputs)
    mu: float  # in units of the mean of |x|^2; infinite: the shared model
    error: float  # mean squared error over the client's samples, each left out in turn
    shared_error: float  # the same of the shared model


def fit_personal_numbers(
    features: Tensor, numbers: Tensor, weight: Tensor, bias: Tensor, leverage: float = 0.0
) -> PersonalRegression:
    """The client's own regression: ridge towards the shared one, as near as left-out samples prefer (`personal.py`)."""
    x = torch.cat([features, features.new_ones(len(features), 1)], 1)
    shared = torch.cat([weight.double(), bias.double()[:, None]], 1).T  # (dim + 1, outputs)
    if not len(x):
        return PersonalRegression(weight.double(), bias.double(), MUS[0], 0.0, 0.0)
    fits = RidgeTowards(x, numbers.double() - x.double() @ shared)
    errors = {
        mu: float((each / (1 - leverage)).square().mean())
        for mu, each in zip(MUS, fits.left_out_errors(MUS), strict=True)
    }
    mu = min(errors, key=errors.__getitem__)
    own = shared + fits.change(mu)
    return PersonalRegression(own[:-1].T, own[-1], mu, errors[mu], errors[MUS[0]])
