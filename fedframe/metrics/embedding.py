"""Features as points in the plane: t-SNE (van der Maaten and Hinton, 2008) or the two largest principal components."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

METHODS = ("tsne", "pca")
COMPONENTS = 50  # principal components that t-SNE starts from: more hardly change the distances, and take longer
PERPLEXITY = 30.0
FEWEST = 10  # points for which neighbourhoods mean something


def project_to_plane(features: Tensor, method: str, seed: int) -> tuple[str, npt.NDArray[np.float64]]:
    """The method that was used, and the points (n, 2); few points are always projected by PCA."""
    from sklearn.decomposition import PCA

    X = features.double().numpy()
    X = X - X.mean(0)
    if not X.any():
        return "pca", np.zeros((len(X), 2))  # all features are the same
    most = min(COMPONENTS, *X.shape)
    reduced: npt.NDArray[np.float64] = PCA(most, svd_solver="full").fit_transform(X)
    if most < 2:
        reduced = np.hstack([reduced, np.zeros((len(X), 2 - most))])
    if method == "pca" or len(X) < FEWEST:
        return "pca", reduced[:, :2]
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # scikit-learn brings it

    perplexity = min(PERPLEXITY, (len(X) - 1) / 3)
    # Its threads synchronise a thousand times and spin while they wait: on a busy machine two threads took more than
    # three times as long as one. The gain on idle cores was not measured.
    with threadpool_limits(1):
        points = TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(reduced)
    return "tsne", np.asarray(points, dtype=np.float64)
