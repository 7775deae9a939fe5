"""Neural collapse: how near features and classifier are to a simplex of class means.

Papyan, Han and Donoho, Prevalence of neural collapse during the terminal phase of deep learning training, PNAS 2020.
With h_ci the feature of sample i of class c, mu_c the mean of class c, mu_G the mean of the class means, and
    S_W = mean_c mean_i (h_ci - mu_c)(h_ci - mu_c)',    S_B = mean_c (mu_c - mu_G)(mu_c - mu_G)',
    M   = the matrix with the columns mu_c - mu_G,      W   = the matrix of class vectors:
NC1  tr(S_W S_B^+) / C                                               features collapse to their class means
NC2  norms:  std_c ||mu_c - mu_G|| / mean_c ||mu_c - mu_G||           class means are equally long
     angles: mean over c != c' of |cos(mu_c - mu_G, mu_c' - mu_G) + 1/(C-1)|    and as far apart as can be
NC3  || W'/||W||_F - M/||M||_F ||_F^2                                 the classifier points where the means do
NC4  share of samples whose predicted class is not that of the nearest mu_c    so it decides by the nearest mean
Collapse means that all of them tend to 0. The NC2 figures are also given for the rows of W.

Differs from the paper in: classes weigh alike also where they have different numbers of samples. Classes without a
sample are left out, and C counts those that are in.
"""

from __future__ import annotations

import torch
from torch import Tensor

AT_ONCE = 1024  # samples compared with all class means together


def class_means(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """mu_c in float64 (zero for a class without samples), and the samples of each class."""
    sums = torch.zeros(classes, features.shape[1], dtype=torch.float64)
    sums.index_add_(0, labels, features.double())
    counts = torch.bincount(labels, minlength=classes)
    return sums / counts.clamp_min(1)[:, None], counts


def collapse(
    features: Tensor, labels: Tensor, classes: int, predicted: Tensor | None = None, W: Tensor | None = None
) -> dict[str, float | None] | None:
    """NC1 to NC4 of features (n, dim); None with fewer than two classes, or for a net that has diverged.

    Without predictions there is no NC4, without a linear classifier no NC3.
    """
    means, counts = class_means(features, labels, classes)
    present = counts > 0
    total = int(present.sum())
    if total < 2 or not bool(torch.isfinite(means).all()):
        return None
    M = means[present] - means[present].mean(0)  # rows, not columns
    norms, angles = frame_distance(M)
    found: dict[str, float | None] = {
        "nc1": variability(features, labels, means, counts, M),
        "nc2_norms": norms,
        "nc2_angles": angles,
        "nc3": None,
        "nc4": None,
    }
    if W is not None:
        V = W.double()[present]
        found["nc3"] = self_duality(V, M)
        found["nc2_classifier_norms"], found["nc2_classifier_angles"] = frame_distance(V)
    if predicted is not None:
        found["nc4"] = float((nearest_mean(features, means, present) != predicted).double().mean())
    return found


def variability(features: Tensor, labels: Tensor, means: Tensor, counts: Tensor, M: Tensor) -> float | None:
    """NC1. With M = U diag(s) V', S_B^+ is V diag(C / s^2) V': only C-1 directions of S_W are ever needed."""
    classes = len(M)
    _, s, V = torch.linalg.svd(M, full_matrices=False)
    # Centring leaves one direction less than classes, and rounding errors of the size of the means, not of M.
    rounding = max(M.shape) * torch.finfo(torch.float64).eps * float(means.norm())
    large = (s > rounding) & (torch.arange(len(s)) < classes - 1)
    if not bool(large.any()):
        return None  # all class means are the same
    directions = V[large] / s[large, None]
    within = torch.zeros((), dtype=torch.float64)
    for part in torch.arange(len(features)).split(AT_ONCE):  # type: ignore[no-untyped-call]
        away = (features[part].double() - means[labels[part]]) @ directions.T
        within += (away.square().sum(1) / counts[labels[part]]).sum()
    return float(within / classes)  # mean over classes of C sum_j, and NC1 divides by C once more


def frame_distance(rows: Tensor) -> tuple[float | None, float | None]:
    """NC2: how unequal the norms of some vectors are, and how far their angles from a simplex ETF's."""
    norms, count = rows.norm(dim=1), len(rows)
    if count < 2 or not bool((norms > 0).all()):
        return None, None
    cosines = (rows / norms[:, None]) @ (rows / norms[:, None]).T
    apart = ~torch.eye(count, dtype=torch.bool)
    unequal = float(norms.std(correction=0) / norms.mean())
    return unequal, float((cosines[apart] + 1 / (count - 1)).abs().mean())


def self_duality(W: Tensor, M: Tensor) -> float | None:
    """NC3: distance between the normalised classifier and the normalised class means."""
    if not float(W.norm()) or not float(M.norm()):
        return None
    return float((W / W.norm() - M / M.norm()).square().sum())


def nearest_mean(features: Tensor, means: Tensor, present: Tensor) -> Tensor:
    """The class of the nearest class mean."""
    candidates = means[present]
    numbers = present.nonzero().flatten()
    found = []
    for part in features.split(AT_ONCE):  # type: ignore[no-untyped-call]
        # |h - mu|^2 less |h|^2, which is the same for all classes
        distance = candidates.square().sum(1) - 2 * part.double() @ candidates.T
        found.append(numbers[distance.argmin(1)])
    return torch.cat(found)
