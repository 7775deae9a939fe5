"""Class imbalance: what always naming the most frequent class would score, and which metric a run has because of it.

Where labels stay at the nodes of a federation, these tell before the first round how many of their own test samples
each class has, where they will send as much in their histograms of scores anyway; under secure aggregation only the
sum over all nodes is seen, and where noise is promised nothing is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedframe.core.measures import metric_name
from fedframe.core.privacy import withholds_figures
from fedframe.util.text import percent

if TYPE_CHECKING:
    from torch import Tensor

    from fedframe.core.message import Number
    from fedframe.data import Federation
    from fedframe.settings import Settings

IMBALANCED = 0.8  # of the test samples in one class: more than this share, and accuracy says little
CLASSES = "classes"  # a kind of work: how many of its own test samples a client has of each class
METRIC = "metric"  # in requests to nodes: what scores are, where the agreement leaves it open
BALANCED = "balanced_accuracy"


def label_counts(federation: Federation) -> list[Tensor]:
    """Test samples by class, as far as they are known: of the global test set, or else of the clients' own.

    Where clients' data are elsewhere and the server has test data itself, there are both.
    """
    source = federation.source
    if source.target is not None:
        return []
    found = [federation.told_counts] if federation.told_counts is not None else []
    if source.test is not None and len(source.test):
        labels = source.test.y
    else:
        labels = source.train.y[federation.local_test.values] if len(source.train) else source.train.y
    if len(labels):
        found.append(labels.bincount(minlength=len(source.classes)))
    return [counts for counts in found if int(counts.sum())]


def majority(federation: Federation) -> tuple[str, float]:
    """The most frequent class of the test data, and its share: the accuracy of a model that knows no other."""
    shares = [(float(counts.max()) / float(counts.sum()), int(counts.argmax())) for counts in label_counts(federation)]
    if not shares:
        return "", 0.0
    share, name = max(shares)
    return federation.source.classes[name], share


def choose_metric(settings: Settings, federation: Federation) -> str:
    """What scores are, where settings leave it open: accuracy, unless one class alone would give a good one."""
    if settings.metric != "auto":
        return settings.metric
    return BALANCED if majority(federation)[1] > IMBALANCED else settings.score_metric


def tells_counts(settings: Settings, federation: Federation) -> bool:
    """Whether nodes tell how many of their test samples each class has: with histograms of scores they do anyway."""
    return federation.source.target is None and settings.score_bins > 0 and not withholds_figures(settings)


def may_choose(agreed: str, federation: Federation) -> bool:
    """Whether the agreed metric leaves it to the organiser, who learns how frequent the classes are."""
    return agreed == "auto" and federation.source.target is None


def told_metric(agreed: Settings, chosen: Settings) -> Mapping[str, Number]:
    """What requests tell nodes of the metric: nothing where it is what they take without a word."""
    return {METRIC: chosen.metric} if agreed.metric == "auto" and chosen.metric == BALANCED else {}


def imbalance_text(name: str, share: float, metric: str) -> str:
    """What accuracy hides, as a sentence."""
    begins = f"{percent(share)} of the test samples are {name!r}: the majority class alone would score {percent(share)}"
    if metric == "accuracy":
        return f"{begins}. Read accuracies against that, or choose --metric balanced_accuracy or auroc."
    return f"{begins} in accuracy. Scores of this run are {metric_name(metric)}."
