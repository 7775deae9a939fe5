"""The shared model of a finished run: its scores on the global test set, and its features of some samples."""

from __future__ import annotations

from typing import Any

import torch

from fedframe.analysis.finished_run import FinishedRun
from fedframe.core.batches import plain_batches
from fedframe.metrics.accuracy import accuracy_by_group, confusion, per_class
from fedframe.metrics.calibration import Calibration
from fedframe.metrics.classifier import class_vectors, embeddings, gram, ideal_cosine, predict_classes
from fedframe.metrics.collapse import class_means, collapse
from fedframe.metrics.degeneration import pruning_curve, sorted_curves
from fedframe.metrics.embedding import project_to_plane
from fedframe.metrics.prototypes import prototype_consistency
from fedframe.metrics.sampling import affordable_clients, balanced_rows, sample_rows

MOST_HOLDERS = 50  # clients whose prototypes are compared
EACH = 100  # training samples of such a client


class SharedFeatures:
    """The shared model's features of a draw of samples, computed once; for runs that share a model."""

    def __init__(self, run: FinishedRun, samples: int, seed: int) -> None:
        self.run, self.samples, self.seed = run, samples, seed
        self.classes = len(run.source.classes)
        train, rows = run.source.train, run.job.federation.train.values
        if not run.has_training_data:
            rows = torch.empty(0, dtype=torch.int64)  # of the nodes' rows only the number is known
        self.rows = balanced_rows(rows, train.y[rows], samples, seed, "balanced")
        self.labels = train.y[self.rows]
        self.features = run.train_embeddings(self.rows) if run.has_training_data else torch.empty(0, run.model.dim)
        self.vectors = class_vectors(run.method, run.model)

    def gram(self, shown: list[int]) -> dict[str, Any] | None:
        """Cosines of the shown classes, and the cosine of a simplex ETF of all classes."""
        if self.vectors is None:
            return None
        W, _ = self.vectors
        return {**gram(W[shown]), "ideal": ideal_cosine(len(W))}

    def collapse(self) -> dict[str, float | None] | None:
        """NC1 to NC4 on training samples."""
        predicted = predict_classes(self.run.job, self.run.model, self.features)
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
        """Training samples on a plane, each with its class and client; a uniform draw, not balanced over classes."""
        if not self.run.has_training_data:
            return None
        train, everything = self.run.source.train, self.run.job.federation.train.values
        rows = sample_rows(everything, self.samples, self.seed, "embedding")
        features = self.run.train_embeddings(rows)
        if len(rows) < 3 or not bool(torch.isfinite(features).all()):
            return None
        used, points = project_to_plane(features, method, self.seed)
        return {
            "method": used,
            "x": points[:, 0].tolist(),
            "y": points[:, 1].tolist(),
            "class": train.y[rows].tolist(),
            "client": self.run.owners(rows).tolist(),
        }

    def prototypes(self) -> float | None:
        """Similarity of the clients' class means under the one shared model, so that only their data differ."""
        if not self.run.has_training_data:
            return None
        job, model = self.run.job, self.run.model
        most = affordable_clients(MOST_HOLDERS, model)
        clients = sample_rows(torch.arange(len(job.federation)), most, self.seed, "holders").tolist()
        return prototype_consistency(job, ((client, model) for client in clients), EACH, self.seed)


@torch.no_grad()
def score_test_set(run: FinishedRun, shown: list[int]) -> dict[str, Any]:
    """`confusion` of the classes that are shown, `per_class`, `groups`, `ece`; None without a model or test set."""
    job, test = run.job, run.source.test
    if not run.shares_a_model or test is None or not len(test):
        return {"confusion": None, "per_class": None, "groups": None, "ece": None}
    classes = len(run.source.classes)
    matrix = torch.zeros(classes, classes, dtype=torch.int64)
    calibration = Calibration()
    rows, size = job.test_rows("test"), job.settings.eval_batch
    model, loss = run.model.eval(), job.method.slot("loss")
    labels = test.y[rows].split(size)  # type: ignore[no-untyped-call]
    for inputs, wanted in zip(plain_batches(run.source, test, rows, size), labels, strict=True):
        logits = job.method.logits(model, inputs)
        predicted = logits.argmax(1)
        confidence = loss.probabilities(logits).gather(1, predicted[:, None]).flatten()
        matrix += confusion(wanted, predicted, classes)
        calibration.add(confidence, predicted == wanted)
    accuracies = per_class(matrix)
    names = [str(c) for c in range(classes)]
    counts = dict(zip(names, run.train_counts, strict=True))
    groups = accuracy_by_group(dict(zip(names, accuracies, strict=True)), counts) if run.has_training_data else None
    return {
        "confusion": matrix[shown][:, shown].tolist(),
        "per_class": accuracies,
        "groups": groups,
        "ece": calibration.result(),
    }
