"""Drift in every round: clients' updates beside the step that the server really took, and their classifiers."""

from __future__ import annotations

from statistics import fmean

import torch

from fedframe.core.job import Job
from fedframe.core.server import RoundRecord, Server
from fedframe.metrics.class_vectors import class_vectors
from fedframe.metrics.drift import against, classifier_cosines, classifier_norm_differences, over_pairs
from fedframe.metrics.local_models import LocalModels
from fedframe.metrics.sampling import fitting, some_clients

MOST_COMPARED = 50  # clients whose classifiers are compared with each other


class DriftInRounds:
    """Cosines and norms client by client, and the means of a round."""

    most: int | None = None

    def __init__(self, job: Job) -> None:
        self.job = job

    def add(self, server: Server, record: RoundRecord, local: LocalModels) -> None:
        """`drift_cosine`, `drift_norm`, `step_norm`; `classifier_cosine`, `classifier_norm_difference`."""
        self.add_updates(server, record, local)
        self.add_classifiers(record, local)

    def add_updates(self, server: Server, record: RoundRecord, local: LocalModels) -> None:
        """Each client's update of the trainable weights beside the server's step, whatever merged them."""
        trainable = self.job.roles.layout.trainable
        clients = local.clients()
        if not trainable or not clients:
            return  # nothing that learns is shared
        step = server.model[:trainable].double() - local.start[:trainable].double()
        cosines, norms = against([local.updates[client][:trainable] for client in clients], step)
        record.by_client |= {"clients": clients, "cosine": cosines, "norm": norms}
        record.figures |= {"drift_norm": fmean(norms), "step_norm": float(step.norm())}
        known = [cosine for cosine in cosines if cosine is not None]
        if known:
            record.figures["drift_cosine"] = fmean(known)

    def add_classifiers(self, record: RoundRecord, local: LocalModels) -> None:
        """SphereFed's Eq. 2 and 3 over the clients' classifiers as local training has left them."""
        most = fitting(MOST_COMPARED, self.job.template)
        clients = some_clients(local.clients(), most, self.job.settings.seed)
        rows = [class_vectors(self.job.method, model) for _, model in local.each(record.round, clients)]
        found = [pair[0] for pair in rows if pair is not None]
        if len(found) < 2:
            return
        vectors = torch.stack(found)
        figures = {
            "classifier_cosine": over_pairs(classifier_cosines(vectors)),
            "classifier_norm_difference": over_pairs(classifier_norm_differences(vectors)),
        }
        record.figures |= {name: value for name, value in figures.items() if value is not None}
