"""The examination of a finished run: what its models are like, as plain numbers in `examination.json`.

It is made once and read from the file afterwards, as long as the run's model and what is asked for are the same.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import torch

from fedframe.analysis.explanations import READINGS
from fedframe.analysis.finished_run import FinishedRun, Net
from fedframe.analysis.personal_models import compare_personal_models
from fedframe.analysis.shared_model import SharedFeatures, score_test_set
from fedframe.core.model import count_parameters
from fedframe.errors import DataError, SettingError, nearest
from fedframe.jobs.inputs import contents
from fedframe.methods.recipes import MethodLike, confirm_method
from fedframe.metrics.accuracy import accuracy_by_group
from fedframe.metrics.cost import count_flops
from fedframe.metrics.embedding import METHODS
from fedframe.metrics.sampling import sample_rows
from fedframe.runs.changes import changed_since
from fedframe.runs.folder import EXAMINATION, MODEL, RunFolder
from fedframe.util.files import read_json, write_sealed
from fedframe.util.plain_files import read_bytes

VERSION = 2  # raised when figures change their meaning, so that old files are made again
MOST_CLASSES = 100  # of matrices
MOST_CLIENTS = 1000  # of the partition
COSTS = (
    "bytes_up",
    "bytes_down",
    "bytes_once",
    "stages",
    "bytes_up_total",
    "bytes_down_total",
    "cpu_seconds",
    "seconds",
    "peak_memory_mb",
)


# Of a run that learns no classes: whatever is about them is not there.
ABOUT_CLASSES = (
    "shown_classes", "confusion", "per_class", "groups", "ece", "personal_groups", "partition", "gram", "collapse",
    "degeneration", "embedding", "classifier_drift", "cka",
)  # fmt: skip
NOTHING: dict[str, Any] = {
    "classes": [],
    **dict.fromkeys(ABOUT_CLASSES),
    "prototypes": {"shared": None, "own": None},
}


def examine(
    folder: str | Path,
    *,
    samples: int = 2000,
    seed: int = 0,
    embedding: str = "tsne",
    net: Net | None = None,
    data: object = None,
    method: MethodLike | None = None,
    again: bool = False,
    changed_code: bool = False,
) -> dict[str, Any]:
    """Examine a finished run's models and data; writes and returns the content of `examination.json`.

    `samples` bounds how many training and test samples are used, `seed` draws them. `net`, `data` and `method` are
    given again where they came from Python. `embedding` is tsne or pca. A file that fits is read, unless `again`. Files
    or code that have changed since the training are refused, unless `changed_code`: then they are taken as they are.
    """
    if samples < 2:
        raise SettingError(f"samples = {samples} are too few to look at; use 2000.")
    if embedding not in METHODS:
        raise SettingError(f"embedding = {embedding!r}: {nearest(embedding, METHODS)}")
    path = RunFolder.open(folder).path
    confirm_method(RunFolder(path).settings().method, method)
    asked = {"version": VERSION, "samples": samples, "seed": seed, "embedding": embedding, "model": model_digest(path)}
    if changed_code and (changed := changed_since(RunFolder(path), net, data=data is None)):
        asked["changed"] = contents(changed)  # it never passes for one with the run's own code
    kept = None if again else stored_examination(path, asked)
    if kept is not None:
        return kept
    found = measure_run(FinishedRun(path, net, data, changed_code), samples, seed, embedding)
    content: dict[str, Any] = significant({"made_of": asked, **found})
    write_sealed(path / EXAMINATION, compact(content))
    return content


def stored_examination(path: Path, asked: dict[str, Any]) -> dict[str, Any] | None:
    """The stored examination, if it is of the same model and was made with the same options."""
    if not (path / EXAMINATION).exists():
        return None
    try:
        content = dict(read_json(path / EXAMINATION))
    except DataError:
        return None  # damaged: made again
    return content if content.get("made_of") == asked else None


def model_digest(path: Path) -> str | None:
    """A hash of the saved model; None if there is none."""
    if not (path / MODEL).exists():
        return None
    return hashlib.blake2b(read_bytes(path / MODEL), digest_size=16).hexdigest()


def measure_run(run: FinishedRun, samples: int, seed: int, embedding: str) -> dict[str, Any]:
    """Every entry of the examination; what needs a shared model is None where there is none."""
    if run.source.target is not None:
        return {**NOTHING, "task": run.source.task, "cost": cost(run), "readings": READINGS}
    classes = len(run.source.classes)
    by_count = sorted(range(classes), key=lambda c: (-run.train_counts[c], c))
    shown = sorted(by_count[:MOST_CLASSES])
    shared = SharedFeatures(run, samples, seed) if run.shares_a_model else None
    own = compare_personal_models(run, seed)
    return {
        "classes": list(run.source.classes),
        "shown_classes": shown if len(shown) < classes else None,
        **score_test_set(run, shown),
        "personal_groups": personal_groups(run),
        "partition": partition(run, shown, seed) if run.has_training_data else None,
        "gram": shared.gram(shown) if shared else None,
        "collapse": shared.collapse() if shared else None,
        "degeneration": shared.degeneration(shown) if shared else None,
        "embedding": shared.embedding(embedding) if shared else None,
        "classifier_drift": own["classifier_drift"],
        "cka": own["cka"],
        "prototypes": {"shared": shared.prototypes() if shared else None, "own": own["prototypes"]},
        "cost": cost(run),
        "readings": READINGS,
    }


def personal_groups(run: FinishedRun) -> dict[str, float | None] | None:
    """Accuracy of the clients' own models on frequent, middling and rare classes, over all clients."""
    by_class, counts = run.summary.get("personal_per_class"), run.summary.get("train_per_class")
    return accuracy_by_group(by_class, counts) if by_class and counts else None


def partition(run: FinishedRun, shown: list[int], seed: int) -> dict[str, Any]:
    """Training samples by client and class; of very many clients, a fixed draw."""
    federation = run.job.federation
    clients = sample_rows(torch.arange(len(federation)), MOST_CLIENTS, seed, "partition")
    counts = torch.stack([federation.class_counts(int(client)) for client in clients])
    return {
        "clients": clients.tolist(),
        "names": [federation.names[int(client)] for client in clients],
        "counts": counts[:, shown].tolist(),
        "sizes": counts.sum(1).tolist(),
    }


def cost(run: FinishedRun) -> dict[str, Any]:
    """Operations of a prediction and of a training step, and what the run took."""
    prediction, training = count_flops(run.method, run.model, run.source.input_shape)
    return {
        "flops_per_sample": prediction,
        "training_flops_per_sample": training,
        "parameters": count_parameters(run.model),
        **{name: run.summary.get(name) for name in COSTS},
        "by_part": run.summary.get("bytes_by_part"),
    }


DIGITS = 6  # significant ones


def significant(value: Any) -> Any:
    """The same with floats rounded to a few significant digits; what is not a finite number becomes None."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: significant(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [significant(each) for each in value]
    return value


def compact(content: dict[str, Any]) -> str:
    """JSON with a line per entry, so that it stays readable although it holds matrices."""
    lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in content.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"
