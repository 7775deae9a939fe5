"""Classifiers for training data in which some classes are rare, from the same sums.

Least squares fits the frequent classes and leaves a rare one short columns. Three ways out:
- class-balanced sums: a sample of class c weighs n_c^-b, where n is known from a message before (`class_weights`);
- columns of the classifier divided by their lengths (`normalised_columns`);
- the Gaussian classifier with one scatter within classes and equal priors (`equal_priors`), which needs no more than V
  and U: G = A - B diag(1 / n_c) B', the exact form of what FedCOF (Guo et al., NeurIPS 2025) estimates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedframe.methods.closed_form.cholesky import mirror_
from fedframe.methods.closed_form.ridge import Problem, solve_ridge


def class_weights(counts: Tensor, power: float) -> Tensor:
    """n_c^-power, scaled so that all samples together weigh as much as without; 1 for a class that nobody has."""
    counts = counts.double()
    known = counts > 0
    raw = torch.where(known, counts.clamp_min(1.0) ** -power, 1.0)
    scale = counts.sum() / (raw * counts).sum() if bool(known.any()) else 1.0
    return torch.where(known, raw * scale, 1.0)


def normalised_columns(problem: Problem, coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """The columns of least squares with equal lengths, their mean length kept; scores are centred at the classes' mean.

    A class that nobody has keeps its column of zeros.
    """
    lengths = coefficients.norm(dim=0)
    known = lengths > 0
    usual = lengths[known].mean() if bool(known.any()) else 1.0
    columns = coefficients * torch.where(known, usual / lengths.clamp_min(1e-300), 0.0)
    return columns, bias_at_mean(problem, columns)


def bias_at_mean(problem: Problem, columns: Tensor) -> Tensor:
    """The bias with which all classes score the same at the mean of the class means, as equally frequent ones would."""
    known = problem.counts > 0
    middle = (problem.cross[:, known] / problem.counts[known]).mean(1)  # of the class means, standardised
    return known / known.sum() - middle @ columns


def equal_priors(problem: Problem, ridge: float) -> tuple[Tensor, Tensor]:
    """(G / n + ridge I)^-1 of every class mean, and the bias of equal priors; standardised features.

    A class that nobody has gets a column of zeros and the lowest bias of all.
    """
    known = problem.counts > 0
    inverse = torch.where(known, 1 / problem.counts.clamp_min(1e-300), 0.0)
    # B holds sums of x y' - x n_c / n, and the sum of x is zero: its columns are the sums of x by class.
    means = problem.cross * inverse
    scatter = mirror_(torch.addmm(problem.gram, means, problem.cross.T, alpha=-1).div_(problem.total))
    columns = solve_ridge(scatter, means, ridge)
    bias = -0.5 * (means * columns).sum(0)
    lowest = bias[known].min() if bool(known.any()) else bias.new_zeros(())
    return columns, torch.where(known, bias, lowest - 1)
