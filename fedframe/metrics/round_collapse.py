"""Neural collapse in every evaluated round, and whether clients mean the same by a class."""

from __future__ import annotations

from fedframe.core.job import Job
from fedframe.core.server import RoundRecord, Server
from fedframe.metrics.class_vectors import class_vectors
from fedframe.metrics.collapse import collapse
from fedframe.metrics.features import classified, embeddings
from fedframe.metrics.local_models import LocalModels
from fedframe.metrics.prototypes import prototype_consistency
from fedframe.metrics.sampling import balanced_rows, fitting, some_clients

SAMPLES = 2000  # training samples whose features are looked at
CLIENTS = 10  # whose prototypes are compared
EACH = 200  # training samples of such a client


class CollapseInRounds:
    """NC1 to NC4 of the shared model; consistency of the prototypes of the clients' local models."""

    most: int | None = CLIENTS

    def __init__(self, job: Job) -> None:
        self.job = job
        rows, train = job.federation.train.values, job.federation.source.train
        self.rows = balanced_rows(rows, train.y[rows], SAMPLES, job.settings.seed, "collapse")

    def add(self, server: Server, record: RoundRecord, local: LocalModels) -> None:
        """`nc1` to `nc4` and `prototype_cosine`, in rounds that are evaluated."""
        if record.scores is None:
            return
        figures = {**self.of_shared(server), "prototype_cosine": self.of_clients(record, local)}
        record.figures |= {name: value for name, value in figures.items() if value is not None}

    def of_shared(self, server: Server) -> dict[str, float | None]:
        """Collapse under the shared model as it stands; nothing where there is none."""
        job = self.job
        if not job.shares_a_model:
            return {}
        model, train = server.net(), job.federation.source.train
        features = embeddings(job, model, train, self.rows)
        found = class_vectors(job.method, model)
        W = None if found is None else found[0]
        return collapse(features, train.y[self.rows], model.classes, classified(job, model, features), W) or {}

    def of_clients(self, record: RoundRecord, local: LocalModels) -> float | None:
        """Each client's local model on its own training samples."""
        job = self.job
        clients = some_clients(local.clients(), fitting(CLIENTS, job.template), job.settings.seed)
        return prototype_consistency(job, local.each(record.round, clients), EACH, job.settings.seed)
