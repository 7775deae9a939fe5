"""The clients' own models compared with each other: classifiers, representations, prototypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fedframe.analysis.finished_run import FinishedRun
from fedframe.analysis.shared_model import EACH
from fedframe.metrics.cka import CKA_CLIENTS, common_inputs, layer_grams, mean_cka
from fedframe.metrics.classifier import class_vectors
from fedframe.metrics.drift import classifier_cosines, classifier_norm_differences, mean_over_pairs
from fedframe.metrics.prototypes import prototype_consistency
from fedframe.metrics.sampling import affordable_clients, sample_clients

MOST_COMPARED = 50  # clients whose classifiers and prototypes are compared


def compare_personal_models(run: FinishedRun, seed: int) -> dict[str, Any]:
    """`classifier_drift`, `cka` and `prototypes` of the clients' own models; None where fewer than two were kept."""
    clients = sample_clients(run.personal_clients, affordable_clients(MOST_COMPARED, run.model), seed)
    if len(clients) < 2:
        return {"classifier_drift": None, "cka": None, "prototypes": None}
    return {
        "classifier_drift": classifiers(run, clients),
        "cka": representations(run, sample_clients(clients, CKA_CLIENTS, seed)),
        "prototypes": prototype_consistency(run.job, run.personal_models(clients), EACH, seed),
    }


def classifiers(run: FinishedRun, clients: Sequence[int]) -> dict[str, Any] | None:
    """SphereFed's Eq. 2 and 3, pair by pair and over all pairs; None for classifiers that are all the same."""
    found = [class_vectors(run.method, model) for _, model in run.personal_models(clients)]
    rows = [pair[0] for pair in found if pair is not None]
    if len(rows) < len(clients):
        return None
    vectors = torch.stack(rows)
    if bool((vectors == vectors[0]).all()):
        return None
    cosine, difference = classifier_cosines(vectors), classifier_norm_differences(vectors)
    return {
        "clients": list(clients),
        "cosine": cosine.tolist(),
        "norm_difference": difference.tolist(),
        "mean_cosine": mean_over_pairs(cosine),
        "mean_norm_difference": mean_over_pairs(difference),
    }


def representations(run: FinishedRun, clients: Sequence[int]) -> dict[str, Any]:
    """Linear CKA by layer, the mean over pairs of a few clients."""
    inputs = common_inputs(run.job)
    layers = mean_cka([layer_grams(run.method, model, inputs) for _, model in run.personal_models(clients)])
    return {"clients": list(clients), "layers": list(layers), "similarity": list(layers.values())}
