"""The shared model on the global test set, in one pass: confusion, accuracy by class and group, calibration."""

from __future__ import annotations

from typing import Any

import torch

from fedframe.analysis.finished_run import FinishedRun
from fedframe.core.batches import plain_batches
from fedframe.metrics.accuracy import confusion, per_class
from fedframe.metrics.calibration import Calibration
from fedframe.metrics.groups import accuracy_by_group


@torch.no_grad()
def on_test_set(run: FinishedRun, shown: list[int]) -> dict[str, Any]:
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
    groups = accuracy_by_group(dict(zip(names, accuracies, strict=True)), counts) if run.sees_training else None
    return {
        "confusion": matrix[shown][:, shown].tolist(),
        "per_class": accuracies,
        "groups": groups,
        "ece": calibration.result(),
    }
