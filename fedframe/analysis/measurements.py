"""Measurements of a finished run by name, for papers' figures: of its saved model, and of its last local models."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from fedframe.analysis.finished_run import FinishedRun
from fedframe.analysis.forms import Curve, Curves, Form, Matrix, Measurement, Number, Points
from fedframe.analysis.shared_model import SharedFeatures
from fedframe.errors import DataError
from fedframe.metrics.accuracy import class_groups
from fedframe.metrics.classifier import class_vectors, embeddings, frame_statistics, gram
from fedframe.metrics.collapse import class_means
from fedframe.metrics.degeneration import MOST_RANKS, evenly_spaced, pruning_curve, sorted_curves, zero_shares
from fedframe.metrics.drift import classifier_cosines, mean_over_pairs
from fedframe.metrics.embedding import project_to_plane
from fedframe.metrics.last_round import FILE
from fedframe.metrics.sampling import balanced_rows
from fedframe.metrics.scatter import client_gap, distance_spread
from fedframe.util.files import read_tensors

SAMPLES = 2000  # training or test samples whose features are looked at
MOST_CLASSES = 100  # of a matrix


class ModelMeasures:
    """Measurements of the saved shared model."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.run, self.seed = FinishedRun(folder, None, None), seed
        if not self.run.shares_a_model:
            raise DataError(f"The run in {folder} has no shared model, so there is nothing to measure.")

    @cached_property
    def training(self) -> SharedFeatures:
        """Features of training samples, drawn evenly over classes."""
        return SharedFeatures(self.run, SAMPLES, self.seed)

    @cached_property
    def test(self) -> tuple[Tensor, Tensor]:
        """Features and labels of test samples, drawn evenly over classes."""
        test = self.run.source.test
        if test is None or not len(test):
            raise DataError(f"The data of {self.run.path} have no test set, which this measurement needs.")
        rows = balanced_rows(self.run.job.test_rows("test"), test.y, SAMPLES, self.seed, "degeneration")
        return embeddings(self.run.job, self.run.model, test, rows), test.y[rows]

    @cached_property
    def means(self) -> tuple[Tensor, Tensor]:
        """Class means of training samples (classes, dim), and how many samples of a class they are of."""
        return class_means(self.training.features, self.training.labels, self.training.classes)

    @cached_property
    def classifier(self) -> tuple[Tensor, Tensor]:
        """Class vectors and bias."""
        found = class_vectors(self.run.method, self.run.model)
        if found is None:
            raise DataError(f"The classifier of {self.run.path} is not linear: it has no class vectors.")
        return found

    def degeneration(self) -> Curves:
        """FedLoGe's Fig. 1: sorted coordinates of class means and their variances, mean over classes."""
        features, labels = self.test
        found = sorted_curves(features, labels, self.training.classes)
        if found is None:
            raise DataError(f"No class of {self.run.path} has two test samples.")
        ranks = [rank + 1 for rank in found["ranks"]]
        lines = [Curve("mean", ranks, found["mean"]), Curve("variance", ranks, found["variance"])]
        tenth = max(1, len(ranks) // 10)
        facts = {
            "variance / mean² of the largest tenth": ratio(found["variance"][:tenth], found["mean"][:tenth]),
            "variance / mean² of the smallest half": ratio(
                found["variance"][len(ranks) // 2 :], found["mean"][len(ranks) // 2 :]
            ),
        }
        return Curves(lines, "feature, by falling mean of its class", "mean over classes", facts)

    def zeros(self) -> Curves:
        """The shading of FedLoGe's Fig. 1: where class vectors have zeros, by falling mean of the class."""
        shares = zero_shares(self.classifier[0], self.means[0])
        ranks = evenly_spaced(len(shares), MOST_RANKS)
        line = Curve("zeros", (ranks + 1).tolist(), shares[ranks].tolist())
        half = len(shares) // 2
        facts = {
            "zeros in all": float(shares.mean()),
            "zeros at the larger half": float(shares[:half].mean()),
            "zeros at the smaller half": float(shares[half:].mean()),
        }
        return Curves(
            [line], "feature, by falling mean of its class", "class vectors with a zero there", facts, high=1.0
        )

    def pruning(self) -> Curves:
        """FedLoGe's Fig. 3: accuracy with a share of every class vector set to zero."""
        curve = pruning_curve(*self.test, *self.classifier, self.means[0])
        pruned = [1 - point["kept"] for point in curve if point["kept"] is not None]
        lines = [
            Curve("smallest means first", pruned, [point["accuracy"] for point in curve]),
            Curve("largest means first", pruned, [point["smallest_kept"] for point in curve]),
        ]
        half = curve[len(curve) // 2]
        facts = {
            "nothing pruned": curve[0]["accuracy"],
            "smaller half pruned": half["accuracy"],
            "larger half pruned": half["smallest_kept"],
        }
        return Curves(lines, "share of the class vector that is pruned", "accuracy", facts, high=1.0)

    def cosines(self) -> Matrix:
        """FedLoGe's Fig. 7: cosines between class vectors; of very many, some that are evenly spaced."""
        W = self.classifier[0]
        shown = evenly_spaced(len(W), MOST_CLASSES)
        cells = torch.tensor(gram(W[shown])["cosines"])
        apart = cells[~torch.eye(len(cells), dtype=torch.bool)]
        facts = {
            "least": float(apart.min()),
            "mean": float(apart.mean()),
            "most": float(apart.max()),
            "ETF": -1 / (len(W) - 1),
        }
        names = [self.run.source.classes[c] for c in shown.tolist()]
        return Matrix(cells.tolist(), names, names, "cosine", "class", "class", -1.0, 1.0, facts)

    def class_means(self) -> Points:
        """FedLoGe's Fig. 6: class means on a plane, coloured by how frequent the class is in training."""
        means, counts = self.means
        present = counts > 0
        kind, places = project_to_plane(means[present], "tsne", self.seed)
        groups = class_groups(self.run.train_counts)
        colours = [group for group, there in zip(groups, present.tolist(), strict=True) if there]
        facts = {"spread of distances": distance_spread(means[present])}
        return points_of(places, colours, [""] * len(places), "class is one of", "", kind, facts)

    def frame(self, name: str) -> Number:
        """A number of FedLoGe's Table 6."""
        return Number(frame_statistics(self.classifier[0])[name])


class LocalMeasures:
    """Measurements of the clients' models after the last round's local training (`measure: local`)."""

    def __init__(self, folder: Path, seed: int) -> None:
        if not (folder / FILE).exists():
            raise DataError(f"{folder} has no {FILE}; it is made by a run with measure = local.")
        self.tensors, self.names = read_tensors(folder / FILE)
        self.folder, self.seed = folder, seed

    def tensor(self, name: str) -> Tensor:
        """A tensor of the file."""
        if name not in self.tensors:
            raise DataError(f"{self.folder / FILE} has no {name}: the clients' classifiers are not linear.")
        return self.tensors[name]

    def class_vectors(self) -> Points:
        """FedETF's Fig. 1, right: every client's class vectors on a plane, coloured by class."""
        vectors = self.tensor("vectors").double()
        clients, classes, dim = vectors.shape
        kind, places = project_to_plane(vectors.reshape(-1, dim), "tsne", self.seed)
        colours = [str(c) for _ in range(clients) for c in range(classes)]
        facts = {"cosine between clients, same class": mean_over_pairs(classifier_cosines(vectors))}
        return points_of(places, colours, [""] * len(places), "class", "", kind, facts)

    def norms(self) -> Matrix:
        """Lengths of every client's class vectors, a row per client."""
        norms = self.tensor("vectors").double().norm(dim=2)
        held = self.tensor("counts") > 0
        facts = {
            "mean, classes that the client holds": float(norms[held].mean()),
            "mean, others": float(norms[~held].mean()) if bool((~held).any()) else None,
            "deviation within a client / mean": float((norms.std(1, correction=0) / norms.mean(1)).mean()),
        }
        return self.by_client(norms, "length of the class vector", facts)

    def counts(self) -> Matrix:
        """Training samples of every client and class."""
        return self.by_client(self.tensor("counts").double(), "training samples", {})

    def by_client(self, cells: Tensor, label: str, facts: dict[str, float | None]) -> Matrix:
        """A matrix with a row per client and a column per class."""
        classes = [str(c) for c in range(cells.shape[1])]
        return Matrix(cells.tolist(), self.names["vectors"], classes, label, "class", "client", 0.0, None, facts)

    def features(self) -> Points:
        """SphereFed's Fig. 3: the same test samples under two clients' models, by client and class."""
        features, labels = self.tensor("features"), self.tensor("labels")
        clients, samples, dim = features.shape
        kind, places = project_to_plane(features.reshape(-1, dim), "tsne", self.seed)
        colours = [f"client {name}" for name in self.names["features"] for _ in range(samples)]
        markers = [f"class {label}" for label in labels.tolist()] * clients
        facts = {"gap between clients": client_gap(features, labels)}
        return points_of(places, colours, markers, "model of", "samples of", kind, facts)


def points_of(places: Any, colours: list[str], markers: list[str], *rest: Any) -> Points:
    """Points from an array (n, 2)."""
    return Points(places[:, 0].tolist(), places[:, 1].tolist(), colours, markers, *rest)


def ratio(variances: list[float], means: list[float]) -> float | None:
    """Mean variance by squared mean of the means."""
    mean = fmean(means) if means else 0.0
    return fmean(variances) / mean**2 if mean else None


# What is measured: its form, and the function that measures it.
MODEL: dict[str, tuple[Form, Callable[[ModelMeasures], Measurement]]] = {
    "degeneration": ("curves", ModelMeasures.degeneration),
    "zeros": ("curves", ModelMeasures.zeros),
    "pruning": ("curves", ModelMeasures.pruning),
    "cosines": ("matrix", ModelMeasures.cosines),
    "class_means": ("points", ModelMeasures.class_means),
    "norm_mean": ("number", lambda run: run.frame("norm_mean")),
    "norm_variance": ("number", lambda run: run.frame("norm_variance")),
    "angle_mean": ("number", lambda run: run.frame("angle_mean")),
    "angle_variance": ("number", lambda run: run.frame("angle_variance")),
}
LOCAL: dict[str, tuple[Form, Callable[[LocalMeasures], Measurement]]] = {
    "class_vectors": ("points", LocalMeasures.class_vectors),
    "norms": ("matrix", LocalMeasures.norms),
    "counts": ("matrix", LocalMeasures.counts),
    "features": ("points", LocalMeasures.features),
}
