"""Measures that are taken while a run trains: the setting `measure`.

Measures read the round's replies and the model and change nothing: the trained model is the same, bit for bit, with and
without them. They keep no state between rounds, so that a resumed run continues as if it had never stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Protocol

import torch

from fedframe.core.job import Job
from fedframe.core.message import Message
from fedframe.core.round_record import Observer, RoundRecord
from fedframe.core.server import Server
from fedframe.metrics.cka import CKA_CLIENTS, common_inputs, layer_grams, mean_cka
from fedframe.metrics.classifier import class_vectors, embeddings, predict_classes
from fedframe.metrics.collapse import collapse
from fedframe.metrics.drift import classifier_cosines, classifier_norm_differences, mean_over_pairs, update_cosines
from fedframe.metrics.last_round import LastRoundMeasure
from fedframe.metrics.local_models import LocalModels
from fedframe.metrics.prototypes import prototype_consistency
from fedframe.metrics.sampling import affordable_clients, balanced_rows, sample_clients

COLLAPSE_SAMPLES = 2000  # training samples whose features are measured
PROTOTYPE_CLIENTS = 10  # clients whose prototypes are compared
PROTOTYPE_SAMPLES = 200  # training samples of each of them
MOST_COMPARED = 50  # clients whose classifiers are compared with each other


class RoundMeasure(Protocol):
    """One measure that is taken in every round."""

    most: int | None  # clients whose updates it needs; None: all

    def add(self, server: Server, record: RoundRecord, local: LocalModels) -> None:
        """Measure, and add the figures to the round's record."""


class CollapseMeasure:
    """NC1 to NC4 of the shared model; consistency of the prototypes of the clients' local models."""

    most: int | None = PROTOTYPE_CLIENTS

    def __init__(self, job: Job) -> None:
        self.job = job
        rows, train = job.federation.train.values, job.federation.source.train
        self.rows = balanced_rows(rows, train.y[rows], COLLAPSE_SAMPLES, job.settings.seed, "collapse")

    def add(self, server: Server, record: RoundRecord, local: LocalModels) -> None:
        """`nc1` to `nc4` and `prototype_cosine`, in rounds that are evaluated."""
        if record.scores is None:
            return
        figures = {**self.of_shared(server), "prototype_cosine": self.of_clients(record, local)}
        record.figures |= {name: value for name, value in figures.items() if value is not None}

    def of_shared(self, server: Server) -> dict[str, float | None]:
        """Collapse under the current shared model; empty where there is none."""
        job = self.job
        if not job.shares_a_model:
            return {}
        model, train = server.net(), job.federation.source.train
        features = embeddings(job, model, train, self.rows)
        found = class_vectors(job.method, model)
        W = None if found is None else found[0]
        return collapse(features, train.y[self.rows], model.classes, predict_classes(job, model, features), W) or {}

    def of_clients(self, record: RoundRecord, local: LocalModels) -> float | None:
        """Consistency of the prototypes, each client's local model on its own training samples."""
        job = self.job
        clients = sample_clients(
            local.clients(), affordable_clients(PROTOTYPE_CLIENTS, job.template), job.settings.seed
        )
        return prototype_consistency(job, local.each(record.round, clients), PROTOTYPE_SAMPLES, job.settings.seed)


class DriftMeasure:
    """Cosines and norms client by client, and the means of a round."""

    most: int | None = None

    def __init__(self, job: Job) -> None:
        self.job = job

    def add(self, server: Server, record: RoundRecord, local: LocalModels) -> None:
        """`drift_cosine`, `drift_norm`, `step_norm`; `classifier_cosine`, `classifier_norm_difference`."""
        self.add_updates(server, record, local)
        self.add_classifiers(record, local)

    def add_updates(self, server: Server, record: RoundRecord, local: LocalModels) -> None:
        """Compare each client's update of the trainable weights with the server's step, whatever the aggregation."""
        trainable = self.job.roles.layout.trainable
        clients = local.clients()
        if not trainable or not clients:
            return  # nothing trainable is shared
        step = server.model[:trainable].double() - local.start[:trainable].double()
        cosines, norms = update_cosines([local.updates[client][:trainable] for client in clients], step)
        record.by_client |= {"clients": clients, "cosine": cosines, "norm": norms}
        record.figures |= {"drift_norm": fmean(norms), "step_norm": float(step.norm())}
        known = [cosine for cosine in cosines if cosine is not None]
        if known:
            record.figures["drift_cosine"] = fmean(known)

    def add_classifiers(self, record: RoundRecord, local: LocalModels) -> None:
        """SphereFed's Eq. 2 and 3 over the clients' classifiers after local training."""
        most = affordable_clients(MOST_COMPARED, self.job.template)
        clients = sample_clients(local.clients(), most, self.job.settings.seed)
        rows = [class_vectors(self.job.method, model) for _, model in local.each(record.round, clients)]
        found = [pair[0] for pair in rows if pair is not None]
        if len(found) < 2:
            return
        vectors = torch.stack(found)
        figures = {
            "classifier_cosine": mean_over_pairs(classifier_cosines(vectors)),
            "classifier_norm_difference": mean_over_pairs(classifier_norm_differences(vectors)),
        }
        record.figures |= {name: value for name, value in figures.items() if value is not None}


class CkaMeasure:
    """Similarity of the clients' local models on the same samples, layer by layer."""

    most: int | None = CKA_CLIENTS

    def __init__(self, job: Job) -> None:
        self.job = job

    def add(self, server: Server, record: RoundRecord, local: LocalModels) -> None:
        """`cka/LAYER` for every layer, and `cka`, their mean; in rounds that are evaluated."""
        if record.scores is None:
            return
        clients = sample_clients(local.clients(), CKA_CLIENTS, self.job.settings.seed)
        if len(clients) < 2:
            return
        inputs = common_inputs(self.job)
        grams = [layer_grams(self.job.method, model, inputs) for _, model in local.each(record.round, clients)]
        layers = mean_cka(grams)
        if layers:
            record.figures |= {f"cka/{layer}": value for layer, value in layers.items()}
            record.figures["cka"] = fmean(layers.values())


MEASURES: dict[str, Callable[[Job], RoundMeasure]] = {
    "collapse": CollapseMeasure,
    "drift": DriftMeasure,
    "cka": CkaMeasure,
    "local": LastRoundMeasure,
}


class RoundMeasures:
    """Observes the rounds for all requested measures, with one copy of the updates that they need."""

    def __init__(self, job: Job, note: Callable[[str], None]) -> None:
        self.measures = [MEASURES[name](job) for name in job.settings.measures]
        needs = [measure.most for measure in self.measures]
        self.local = LocalModels(job, None if None in needs else max(need or 0 for need in needs))
        self.all = None in needs
        self.note = note
        self._noted = False

    def begin(self, server: Server, clients: Sequence[int]) -> None:
        """Prepare to keep updates; a note says so if there are too many of them."""
        self.local.begin(server, clients)
        if self.all and not self._noted and len(clients) > self.local.most:
            self._noted = True
            self.note(
                f"Drift is measured for {self.local.most} of the {len(clients)} clients of a round, a fixed draw: more "
                "updates are not kept in memory at once."
            )

    def on_reply(self, reply: Message) -> None:
        """Keep the update of a reply if a measure needs it."""
        self.local.on_reply(reply)

    def end(self, server: Server, record: RoundRecord) -> None:
        """Take all measures of the round."""
        before = dict(record.figures)
        for measure in self.measures:
            measure.add(server, record, self.local)
        # A net that has diverged gives no figures: JSON knows no NaN.
        ours = {name: value for name, value in record.figures.items() if math.isfinite(value)}
        record.figures = {**before, **ours}
        self.local.updates = {}  # free until the next round


def observers(job: Job, note: Callable[[str], None]) -> list[Observer]:
    """The observers of a run's rounds: none, unless the setting `measure` asks for them."""
    return [RoundMeasures(job, note)] if job.settings.measures else []
