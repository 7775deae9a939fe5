"""A client's own classifier in closed form: ridge towards the shared one, and the shift to the client's own classes.

With x the client's standardised features and a constant 1 behind them, W the shared classifier, and R = Y - X W what it
leaves unexplained on the client's own samples:
    W_k = (X'X + mu I)^-1 (X'Y + mu W) = W + X' G R,   G = (X X' + mu I)^-1.
mu = infinity is the shared classifier. A sample's score by the classifier that has not seen it is y_i - e_i with
    e_i = (G R)_i / G_ii,
exactly, so that leaving out every sample in turn costs one eigendecomposition for all mu.

The shared classifier has seen the client's samples, and errs more on others. Its errors R are therefore divided by
1 - h, with h = tr(H) / n the mean leverage of all samples, as in generalised cross-validation.

Least squares estimates class probabilities under the shared frequencies p of classes, but too cautious ones: they are
raised to a power (`sharpness`). A client whose frequencies are q has them in proportion to score_c^sharpness q_c / p_c
(Saerens, Latinne, Decaestecker, Neural Computation 2002). A class that the client has never seen counts as a share of
one sample, so that it stays possible; and a sample that is left out is left out of q as well. Of all mu and powers,
with and without the shift, the client takes what gives its left-out samples the lowest log loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MUS = (math.inf, *(10.0 ** (half / 2) for half in range(6, -5, -1)))  # times the mean of |x|^2
SHARPNESSES = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
ROWS = 512  # samples that are in float64 at a time
FLOOR = 1e-3  # probability below which a score of least squares says no more than "hardly"
SLOPE = 1e-3  # what remains of differences below it, so that the order of the classes does


@dataclass(frozen=True)
class PersonalHead:
    """What a client found best for itself."""

    weight: Tensor  # (classes, dim), of standardised features
    bias: Tensor  # (classes)
    sharpness: float  # by which the logarithms of the scores are multiplied
    shift: Tensor  # (classes): log(q / p), to be added to them then; zeros: no shift
    mu: float  # in units of the mean of |x|^2; infinite: the shared classifier
    loss: float  # mean log loss over the client's samples, each left out in turn
    shared_loss: float  # the same of the shared classifier with the power that suits it best, without a shift


def log_scores(scores: Tensor) -> Tensor:
    """Logarithms of what least squares says of the classes, as probabilities: they all but end at `FLOOR`."""
    cut = scores.clamp_min(FLOOR)
    return cut.log() + SLOPE * (scores - cut)


def prior_shift(counts: Tensor, priors: Tensor) -> Tensor:
    """log(q / p), with q the client's frequencies and one more sample that is spread over the classes like p."""
    known = priors > 0
    ratio = (counts / priors.clamp_min(1e-30) + 1) / (counts.sum() + 1)
    return torch.where(known, ratio.log(), 0.0)


def left_out_shifts(labels: Tensor, counts: Tensor, priors: Tensor) -> Tensor:
    """The shift (n, classes) for every sample, from the client's other samples.

    A class without a prior is not shifted, whoever has it: privacy's noise may have hidden it, or who had it has left.
    """
    shifts = prior_shift(counts, priors).repeat(len(labels), 1)
    shifts += math.log((float(counts.sum()) + 1) / max(float(counts.sum()), 1.0))
    own = ((counts[labels] - 1) / priors[labels].clamp_min(1e-30) + 1) / counts.sum().clamp_min(1.0)
    shifts[torch.arange(len(labels)), labels] = own.log()
    return torch.where(priors > 0, shifts, 0.0)


def log_loss(scores: Tensor, labels: Tensor, sharpness: float, shifts: Tensor) -> float:
    """Mean log loss of scores as probabilities."""
    return float(torch.nn.functional.cross_entropy(sharpness * log_scores(scores) + shifts, labels))


def fit_personal(
    features: Tensor,
    labels: Tensor,
    weight: Tensor,
    bias: Tensor,
    priors: Tensor,
    leverage: float = 0.0,
    shift: bool = True,
) -> PersonalHead:
    """The client's own classifier: of all candidates the one with the lowest log loss on samples left out.

    `features` (n, dim) are standardised; `weight` (classes, dim) and `bias` are the shared classifier's, and `leverage`
    is h. The shared classifier is among the candidates, so that by this measure the result is never worse.
    """
    x = torch.cat([features, features.new_ones(len(features), 1)], 1)
    shared = torch.cat([weight.double(), bias.double()[:, None]], 1).T  # (dim + 1, classes)
    y = torch.nn.functional.one_hot(labels, len(bias)).double()
    counts, nothing = y.sum(0), torch.zeros(len(bias), dtype=torch.float64)
    if not len(labels):
        return PersonalHead(weight.double(), bias.double(), 1.0, nothing, math.inf, 0.0, 0.0)
    residuals = torch.cat([block.double() @ shared for block in x.split(ROWS)]).neg_().add_(y)  # type: ignore[no-untyped-call]
    fits = RidgeTowards(x, residuals)
    shifts = {False: (nothing, nothing[None])}
    if shift:
        shifts[True] = (prior_shift(counts, priors.double()), left_out_shifts(labels, counts, priors.double()))
    losses = {}
    for mu, errors in zip(MUS, fits.left_out_errors(MUS), strict=True):
        scores = y - errors / (1 - leverage)
        for shifted, (_, left_out) in shifts.items():
            for sharpness in SHARPNESSES:
                losses[mu, shifted, sharpness] = log_loss(scores, labels, sharpness, left_out)
    mu, shifted, sharpness = best = min(losses, key=losses.__getitem__)
    before = min(loss for (mu, shifted, _), loss in losses.items() if math.isinf(mu) and not shifted)
    own = shared + fits.change(mu)
    return PersonalHead(own[:-1].T, own[-1], sharpness, shifts[shifted][0], mu, losses[best], before)


class RidgeTowards:
    """Ridge regression of residuals for many penalties: one eigendecomposition of the smaller Gram matrix.

    Samples may be kept in float32; all arithmetic is in float64, a block of rows at a time.
    """

    def __init__(self, x: Tensor, residuals: Tensor) -> None:
        self.x, self.residuals = x, residuals
        self.wide = len(x) <= x.shape[1]
        if self.wide:
            whole = x.double()
            gram = whole @ whole.T
            del whole
        else:
            gram = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64)
            for block in self.blocks():
                gram.addmm_(block.T, block)
        self.unit = float(gram.trace() / len(x))  # of mu
        values, self.vectors = torch.linalg.eigh(gram)
        self.values = values.clamp_min(0)
        # X = T P' with P orthonormal and T'T diagonal: T'R, and the squares of T, from which leverages follow.
        if self.wide:
            self.projected = self.vectors.T @ residuals * self.values.sqrt()[:, None]
        else:
            self.projected = self.vectors.T @ self.times(residuals)

    def blocks(self) -> Iterator[Tensor]:
        """The samples in float64, some rows at a time."""
        return (block.double() for block in self.x.split(ROWS))  # type: ignore[no-untyped-call]

    def times(self, rows: Tensor) -> Tensor:
        """X' times something with a row per sample."""
        found = torch.zeros(self.x.shape[1], rows.shape[1], dtype=torch.float64)
        for block, part in zip(self.blocks(), rows.split(ROWS), strict=True):  # type: ignore[no-untyped-call]
            found.addmm_(block.T, part)
        return found

    def left(self) -> Iterator[Tensor]:
        """T, some rows at a time."""
        if self.wide:
            return (rows * self.values.sqrt() for rows in self.vectors.split(ROWS))
        return (block @ self.vectors for block in self.blocks())

    def left_out_errors(self, mus: Sequence[float]) -> list[Tensor]:
        """e_i for every sample and class, for each of these mu."""
        shrunk = torch.stack([1 / (self.values + mu * self.unit) for mu in mus])  # zeros for an infinite mu
        solved = self.projected * shrunk[:, :, None]  # (mus, rank, classes)
        fitted, leverage = [], []
        for rows in self.left():
            fitted.append(rows @ solved)
            leverage.append(rows.square() @ shrunk.T)
        errors = self.residuals - torch.cat(fitted, 1)
        return [*(errors / (1 - torch.cat(leverage).T).clamp_min(1e-9)[:, :, None])]

    def change(self, mu: float) -> Tensor:
        """W_k - W (dim + 1, classes)."""
        shrunk = 1 / (self.values + mu * self.unit)
        if self.wide:
            change = self.times(self.vectors @ (shrunk[:, None] * (self.vectors.T @ self.residuals)))
        else:
            change = self.vectors @ (self.projected * shrunk[:, None])
        return change
