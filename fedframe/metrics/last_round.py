"""The clients' models after the last round's local training, before they are merged: what is kept of them for figures.

SphereFed (Dong et al., ECCV 2022) draws features of the same classes under two clients' local models (Fig. 3), FedETF
(Li et al., ICCV 2023) the clients' class vectors (Fig. 1), and FedRANE (Liao et al., MM 2023) scores these models as
personal ones. The models themselves would fill the disk; a few numbers of each are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import torch
from torch import Tensor

from fedframe.core.job import Job
from fedframe.core.model import Model
from fedframe.core.round_record import RoundRecord
from fedframe.core.server import Server
from fedframe.data import Samples
from fedframe.metrics.classifier import class_vectors, embeddings, predict_classes
from fedframe.metrics.local_models import LocalModels
from fedframe.metrics.sampling import affordable_clients, sample_clients, sample_rows
from fedframe.util.files import write_tensors

FILE = "local_models.safetensors"
MOST_CLIENTS = 50  # whose class vectors are kept
FEATURE_CLIENTS, FEATURE_CLASSES, FEATURE_SAMPLES = 2, 2, 100  # clients and classes as in SphereFed's Fig. 3


class LastRoundMeasure:
    """Scores every client's local model on the client's own test data, and keeps class vectors and some features."""

    most: int | None = None

    def __init__(self, job: Job) -> None:
        self.job = job

    def add(self, server: Server, record: RoundRecord, local: LocalModels) -> None:
        """`local`, the mean accuracy over clients, and the file `local_models.safetensors`; in the last round only."""
        job = self.job
        if record.round < job.settings.rounds or not len(job.federation.source.train):
            return
        clients, seed = local.clients(), job.settings.seed
        compared = set(sample_clients(clients, affordable_clients(MOST_CLIENTS, job.template), seed))
        shown = sample_clients(clients, FEATURE_CLIENTS, seed)
        pool, rows = self.common_samples(shown)
        scores: list[float] = []
        vectors: dict[int, Tensor] = {}
        features: dict[int, Tensor] = {}
        for client, model in local.each(record.round, clients):
            score = self.own_accuracy(client, model)
            scores += [] if score is None else [score]
            found = class_vectors(job.method, model) if client in compared else None
            if found is not None:
                vectors[client] = found[0].float()
            if client in shown:
                features[client] = embeddings(job, model, pool, rows)
        if scores:
            record.figures["local"] = fmean(scores)
        if vectors or features:
            self.write(vectors, features, pool.y[rows])

    def own_accuracy(self, client: int, model: Model) -> float | None:
        """Accuracy of a client's local model on its own test data; None without any."""
        if not len(self.job.federation.local_test[client]):
            return None
        samples, rows, labels = self.job.local_test(client)
        predicted = predict_classes(self.job, model, embeddings(self.job, model, samples, rows))
        return float((predicted == labels).double().mean())

    def common_samples(self, clients: Sequence[int]) -> tuple[Samples, Tensor]:
        """Test samples (training samples where there is no test set) of a few classes, the same for all clients.

        The classes are those of which each of these clients has the most training samples.
        """
        job, source = self.job, self.job.federation.source
        held = torch.stack([job.federation.class_counts(client) for client in clients]).amin(0)
        classes = held.argsort(descending=True, stable=True)[:FEATURE_CLASSES].tolist()
        pool, rows = source.train, job.federation.train.values
        if source.test is not None and len(source.test):
            pool, rows = source.test, job.test_rows("test")
        labels = pool.y[rows]
        each = [
            sample_rows(rows[labels == c], FEATURE_SAMPLES, job.settings.seed, f"local/{c}") for c in sorted(classes)
        ]
        return pool, torch.cat(each)

    def write(self, vectors: dict[int, Tensor], features: dict[int, Tensor], labels: Tensor) -> None:
        """Write the file: class vectors (clients, classes, dim) and features (clients, samples, dim) in float32."""
        tensors = {"labels": labels}
        if vectors:
            tensors["vectors"] = torch.stack([*vectors.values()])
            tensors["counts"] = torch.stack([self.job.federation.class_counts(client) for client in vectors])
        if features:
            tensors["features"] = torch.stack([*features.values()])
        names = self.job.federation.names
        shown = {"vectors": [names[k] for k in vectors], "features": [names[k] for k in features]}
        write_tensors(self.job.folder / FILE, tensors, shown)
