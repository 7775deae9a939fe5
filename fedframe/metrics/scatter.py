"""How points lie to each other, in the space that they come from: what a picture of them on a plane cannot measure."""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor


def distance_spread(points: Tensor) -> float | None:
    """Standard deviation of the distances of all pairs, relative to their mean: 0 where all are equally far apart.

    None with fewer than three points, or where all are the same.
    """
    if len(points) < 3:
        return None
    distances = torch.pdist(points.double())
    mean = float(distances.mean())
    return float(distances.std(correction=0)) / mean if mean else None


def client_gap(features: Tensor, labels: Tensor) -> float | None:
    """How far clients' means of a class are apart, in units of how far samples are from such a mean.

    Features are (clients, samples, dim): the same samples under the clients' models. For each class and pair of
    clients, the distance of the two means is divided by the root mean square distance of both clients' samples from
    their own mean; the result is the mean over classes and pairs. 0: the clusters lie on each other; above about 2,
    they are apart. None with fewer than two clients, or where samples do not differ.
    """
    ratios = []
    for c in sorted(set(labels.tolist())):
        wide = features[:, labels == c].double()
        means = wide.mean(1)
        within = (wide - means[:, None]).square().sum(2).mean(1)
        for one, other in combinations(range(len(wide)), 2):
            scale = float(((within[one] + within[other]) / 2).sqrt())
            if scale:
                ratios.append(float((means[one] - means[other]).norm()) / scale)
    return sum(ratios) / len(ratios) if ratios else None
