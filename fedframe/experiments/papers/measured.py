"""What is measured of a finished cell, by name: a score, a figure of its rounds, or a look at its models.

generic.final, bytes_up, ...       a score (grid/scores.py): a number
last.classifier_cosine             a figure of metrics.jsonl in the last round that has it: a number
rounds.generic                     the same in all rounds: a curve
stage.server_stage                 seconds of a stage after the last round: a number
model.pruning, local.norms, ...    measurements of models (analysis/measurements.py): of any form
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from fedframe.analysis.forms import Curve, Curves, Form, Measurement, Number
from fedframe.analysis.measurements import LOCAL, MODEL, LocalMeasures, ModelMeasures
from fedframe.errors import SettingError, nearest
from fedframe.experiments.grid.cell import Outcome
from fedframe.experiments.grid.scores import check_score, explain, is_accuracy, read_score
from fedframe.metrics.accuracy import CUTS

STAGES = ("server_stage", "client_stage")
FIGURES = {
    "generic": "accuracy of the shared model on the global test set",
    "client": "accuracy of the shared model on each client's own test data, mean over clients",
    "local": "accuracy of each client's model after the last round's local training on its own test data, mean over "
    "clients",
    "classifier_cosine": "cosine between class vectors of the same class at two clients, mean over classes and pairs",
    "classifier_norm_difference": "difference in length between class vectors of the same class at two clients, mean "
    "over classes and pairs",
}
ACCURACIES = ("generic", "client", "local")
MODEL_MEANINGS = {
    "degeneration": "coordinates of the class means of test samples in falling order, and their variances within "
    "classes",
    "zeros": "class vectors that have a zero at the coordinate of this rank",
    "pruning": "accuracy on the global test set with entries of every class vector set to zero, chosen by the class "
    "means of training samples",
    "cosines": "cosines between class vectors",
    "class_means": "class means of training samples, by t-SNE; many, medium and few: how frequent the class is. Spread "
    "of distances: their standard deviation over pairs of class means, by their mean (0: all equally far apart)",
    "norm_mean": "mean length of the class vectors",
    "norm_variance": "variance of the class vectors' lengths",
    "angle_mean": "mean angle of two class vectors in degrees",
    "angle_variance": "variance of the angles between class vectors in square degrees",
}
LOCAL_MEANINGS = {
    "class_vectors": "every client's class vectors after the last round's local training, by t-SNE",
    "norms": "lengths of every client's class vectors after the last round's local training",
    "counts": "training samples of each client and class",
    "features": "the same test samples under the models of two clients after the last round's local training, by "
    "t-SNE. Gap: distance of the two clients' means of a class, by the distance of samples from such a mean",
}


def form_of(name: str) -> Form:
    """The form of a measurement; a name that does not exist is refused."""
    kind, _, what = name.partition(".")
    known = {"last": FIGURES, "rounds": FIGURES, "stage": STAGES, "model": MODEL, "local": LOCAL}.get(kind)
    if known is None:
        check_score(name)
        return "number"
    if what not in known:
        raise SettingError(f"There is no measurement {name!r}; {nearest(name, [f'{kind}.{each}' for each in known])}")
    if kind in ("model", "local"):
        return (MODEL if kind == "model" else LOCAL)[what][0]
    return "curves" if kind == "rounds" else "number"


def check_number(name: str) -> str:
    """The name of a measurement that is one number, if there is such a one."""
    if form_of(name) != "number":
        raise SettingError(f"{name!r} is not one number; it belongs into a figure.")
    return name


def unit_of(name: str) -> str:
    """What a number counts: accuracy, bytes, count (rounds, seconds of runs) or plain."""
    kind, _, what = name.partition(".")
    if kind in ("last", "rounds"):
        return "accuracy" if what in ACCURACIES else "plain"
    if kind in ("stage", "model", "local"):
        return "plain"
    if is_accuracy(name):
        return "accuracy"
    return "bytes" if name.startswith("bytes") else "count"


def meaning_of(name: str) -> str:
    """What is measured, in words."""
    kind, _, what = name.partition(".")
    if kind in ("last", "rounds"):
        return FIGURES[what] + (", in the last round" if kind == "last" and what != "local" else "")
    if kind == "stage":
        return f"seconds that the {what.replace('_', ' ')} after the last round took on this machine, for all clients"
    if kind in ("model", "local"):
        return (MODEL_MEANINGS if kind == "model" else LOCAL_MEANINGS)[what]
    return explain(name)


class CellReader:
    """Measures a finished cell; its model and data are loaded only if something asks for them, and once."""

    def __init__(self, outcome: Outcome, cuts: Sequence[float] = CUTS) -> None:
        self.outcome, self.cuts = outcome, cuts

    @cached_property
    def model(self) -> ModelMeasures:
        """Its saved model."""
        return ModelMeasures(self.outcome.cell.folder, self.outcome.cell.settings.seed)

    @cached_property
    def local(self) -> LocalMeasures:
        """What was kept of its clients' last local models."""
        return LocalMeasures(self.outcome.cell.folder, self.outcome.cell.settings.seed)

    def read(self, name: str) -> Measurement:
        """A measurement by name."""
        kind, _, what = name.partition(".")
        if kind == "model":
            return MODEL[what][1](self.model)
        if kind == "local":
            return LOCAL[what][1](self.local)
        if kind == "rounds":
            points = [(line["round"], line[what]) for line in self.outcome.history if line.get(what) is not None]
            y_label = "accuracy" if what in ACCURACIES else what.replace("_", " ")
            last = points[-1][1] if points else None
            curve = Curve("", [round for round, _ in points], [value for _, value in points])
            return Curves([curve], "round", y_label, {"last round": last})
        return Number(self.number(name))

    def number(self, name: str) -> float | None:
        """A measurement that is one number; None where it was not measured."""
        kind, _, what = name.partition(".")
        if kind == "last":
            values = [line[what] for line in self.outcome.history if line.get(what) is not None]
            return float(values[-1]) if values else None
        if kind == "stage":
            stage = self.outcome.summary.get("stages", {}).get(what)
            return None if stage is None else float(stage["seconds"])
        if kind in ("model", "local"):
            found = self.read(name)
            return found.value if isinstance(found, Number) else None
        return read_score(self.outcome, name, self.cuts)
