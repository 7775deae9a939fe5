"""What the shared model makes of some training and test samples: collapse, degeneration, a picture, prototypes."""

from __future__ import annotations

from typing import Any

import torch

from fedframe.analysis.finished_run import FinishedRun
from fedframe.metrics.class_vectors import class_vectors, gram, ideal_cosine
from fedframe.metrics.collapse import class_means, collapse
from fedframe.metrics.degeneration import pruning_curve, sorted_curves
from fedframe.metrics.embedding import plane
from fedframe.metrics.features import classified, embeddings
from fedframe.metrics.prototypes import prototype_consistency
from fedframe.metrics.sampling import balanced_rows, fitting, some_rows

MOST_HOLDERS = 50  # clients whose prototypes are compared
EACH = 100  # training samples of such a client


class SharedFeatures:
    """The shared model's features of a draw of samples, computed once; for runs that share a model."""

    def __init__(self, run: FinishedRun, samples: int, seed: int) -> None:
        self.run, self.samples, self.seed = run, samples, seed
        self.classes = len(run.source.classes)
        train, rows = run.source.train, run.job.federation.train.values
        if not run.sees_training:
            rows = torch.empty(0, dtype=torch.int64)  # only the number is known of those at the nodes
        self.rows = balanced_rows(rows, train.y[rows], samples, seed, "balanced")
        self.labels = train.y[self.rows]
        self.features = run.train_embeddings(self.rows) if run.sees_training else torch.empty(0, run.model.dim)
        self.vectors = class_vectors(run.method, run.model)

    def gram(self, shown: list[int]) -> dict[str, Any] | None:
        """The classifier beside a simplex ETF; of classes that are shown, but the ideal is that of all."""
        if self.vectors is None:
            return None
        W, _ = self.vectors
        return {**gram(W[shown]), "ideal": ideal_cosine(len(W))}

    def collapse(self) -> dict[str, float | None] | None:
        """NC1 to NC4."""
        predicted = classified(self.run.job, self.run.model, self.features)
        W = None if self.vectors is None else self.vectors[0]
        return collapse(self.features, self.labels, self.classes, predicted, W)

    def degeneration(self, shown: list[int]) -> dict[str, Any] | None:
        """Sorted class means and the pruning curve, on test samples."""
        test = self.run.source.test
        if test is None or not len(test):
            return None
        rows = balanced_rows(self.run.job.test_rows("test"), test.y, self.samples, self.seed, "degeneration")
        features, labels = embeddings(self.run.job, self.run.model, test, rows), test.y[rows]
        curves = sorted_curves(features, labels, self.classes)
        if curves is None:
            return None
        curves |= {name: [curves[name][c] for c in shown] for name in ("sorted_means", "variances")}
        pruning = None
        if self.vectors is not None and len(self.features):
            means, _ = class_means(self.features, self.labels, self.classes)
            pruning = pruning_curve(features, labels, *self.vectors, means)
        return {**curves, "pruning": pruning}

    def embedding(self, method: str) -> dict[str, Any] | None:
        """Training samples on a plane, each with its class and client; drawn as the data are, not class by class."""
        if not self.run.sees_training:
            return None
        train, everything = self.run.source.train, self.run.job.federation.train.values
        rows = some_rows(everything, self.samples, self.seed, "embedding")
        features = self.run.train_embeddings(rows)
        if len(rows) < 3 or not bool(torch.isfinite(features).all()):
            return None
        used, points = plane(features, method, self.seed)
        return {
            "method": used,
            "x": points[:, 0].tolist(),
            "y": points[:, 1].tolist(),
            "class": train.y[rows].tolist(),
            "client": self.run.owners(rows).tolist(),
        }

    def prototypes(self) -> float | None:
        """How alike the clients' class means are under the one shared model: what is left is what their data differ."""
        if not self.run.sees_training:
            return None
        job, model = self.run.job, self.run.model
        most = fitting(MOST_HOLDERS, model)
        clients = some_rows(torch.arange(len(job.federation)), most, self.seed, "holders").tolist()
        return prototype_consistency(job, ((client, model) for client in clients), EACH, self.seed)
