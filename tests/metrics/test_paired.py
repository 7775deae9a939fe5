"""Differences of two models on the same samples, against plain loops and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as theirs

from fedframe.core.measures import Predictions, measure
from fedframe.metrics.paired import PairedDifference, difference, least_error, matched_shares, mean_difference

METRICS = ("accuracy", "balanced_accuracy", "auroc", "average_precision", "f1", "sensitivity", "specificity")


def pair(seed: int, count: int, classes: int = 2, better: float = 0.5) -> tuple[Predictions, Predictions]:
    """Two models that make the same mistakes for the most part; the first one is a little better."""
    draw = np.random.default_rng(seed)
    labels = draw.permutation(np.arange(count) % classes)
    shared = draw.normal(size=(count, classes))

    def model(strength: float) -> Predictions:
        logits = shared + strength * np.eye(classes)[labels] + 0.3 * draw.normal(size=(count, classes))
        return Predictions(np.exp(logits) / np.exp(logits).sum(1, keepdims=True), labels)

    return model(1.0 + better), model(1.0)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("metric", METRICS)
def test_a_difference_is_that_of_the_scores_and_that_of_a_model_with_itself_is_zero(metric: str, classes: int) -> None:
    one, other = pair(0, 120, classes)
    found = difference(one, other, metric)
    scores = [measure(each, metric) for each in (one, other)]
    assert found is not None
    assert scores[0] is not None
    assert scores[1] is not None
    assert found.value == pytest.approx(scores[0].value - scores[1].value, abs=1e-12)
    assert found.low < found.value < found.high
    turned = difference(other, one, metric)
    assert turned is not None
    assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low), abs=1e-9)
    itself = difference(one, one, metric)
    assert itself is not None
    assert itself.value == 0
    assert itself.low < 0 < itself.high  # a few samples prove nothing
    assert itself.error <= least_error(120 // classes) + 1e-12


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_matched_shares_are_the_wald_interval_of_the_four_cells_with_half_a_pair_added(
    rights: list[tuple[bool, bool]],
) -> None:
    cells = {(a, b): 0.5 for a in (True, False) for b in (True, False)}
    for each in rights:
        cells[each] += 1
    n = sum(cells.values())
    # Sample by sample: the variance of d = +1, 0, -1 over all cells.
    mean = sum(count * (a - b) for (a, b), count in cells.items()) / n
    variance = sum(count * ((a - b) - mean) ** 2 for (a, b), count in cells.items()) / n / n
    better, worse = (sum(each == cell for each in rights) for cell in ((True, False), (False, True)))
    found = matched_shares(better, worse, len(rights))
    assert found.middle == pytest.approx(mean, abs=1e-12)
    assert found.error == pytest.approx(math.sqrt(variance), abs=1e-12)
    assert found.low <= found.value <= found.high


def test_the_error_of_an_auroc_difference_is_delongs_in_plain_loops() -> None:
    one, other = pair(1, 70)
    labels = one.labels
    own, others = np.flatnonzero(labels == 1), np.flatnonzero(labels == 0)
    v10, v01 = [], []  # of both models: placements of the class's own samples, and of the others
    for model in (one, other):
        p = model.probabilities[:, 1]
        wins = [[float(p[i] > p[j]) + 0.5 * float(p[i] == p[j]) for j in others] for i in own]
        v10.append([sum(row) / len(others) for row in wins])
        v01.append([sum(row[j] for row in wins) / len(own) for j in range(len(others))])
    variance = 0.0
    for v, size in ((v10, len(own)), (v01, len(others))):
        s = np.cov(np.array(v), ddof=1)
        variance += (s[0, 0] + s[1, 1] - 2 * s[0, 1]) / size
    found = difference(one, other, "auroc")
    assert found is not None
    assert found.error == pytest.approx(math.sqrt(variance), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["f1", "average_precision", "auroc"])
def test_errors_are_the_spread_over_pairs_drawn_anew_with_scikit_learn(metric: str) -> None:
    one, other = pair(2, 150, 3)

    def score(model: Predictions, rows: np.ndarray) -> float:
        labels, p = model.labels[rows], model.probabilities[rows]
        if metric == "f1":
            return float(theirs.f1_score(labels, p.argmax(1), average="macro"))
        of = theirs.average_precision_score if metric == "average_precision" else theirs.roc_auc_score
        return float(np.mean([of(labels == c, p[:, c]) for c in range(3)]))

    draw = np.random.default_rng(3)
    drawn = [draw.integers(0, 150, 150) for _ in range(400)]
    spread = np.std([score(one, rows) - score(other, rows) for rows in drawn], ddof=1)
    found = difference(one, other, metric)
    assert found is not None
    assert found.error == pytest.approx(spread, rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy", "auroc"])
def test_an_interval_holds_the_true_difference_in_about_nineteen_of_twenty_draws(metric: str) -> None:
    large = difference(*pair(99, 60_000), metric)
    assert large is not None
    found = [difference(*pair(seed, 80), metric) for seed in range(300)]
    held = np.mean([each is not None and each.low <= large.value <= each.high for each in found])
    assert 0.91 <= held <= 0.99


def test_pairs_make_intervals_narrower_than_scores_side_by_side() -> None:
    one, other = pair(5, 400)
    found = difference(one, other, "accuracy")
    scores = [measure(each, "accuracy") for each in (one, other)]
    assert found is not None
    apart = math.hypot(*(each.error for each in scores if each is not None))
    assert found.error < 0.75 * apart


def test_the_mean_over_clients_adds_variances_and_needs_the_same_samples() -> None:
    found = mean_difference([PairedDifference(0.2, 0.03, 0.1), PairedDifference(0.0, 0.04, 0.0)])
    assert (found.value, found.middle, found.error) == pytest.approx((0.1, 0.05, 0.025))
    one, other = pair(0, 30)
    with pytest.raises(ValueError, match="same samples"):
        difference(one, Predictions(other.probabilities, 1 - other.labels), "accuracy")
    only = Predictions(one.probabilities, np.zeros(30, dtype=np.int64))
    assert difference(only, only, "auroc") is None
