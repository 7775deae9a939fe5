"""Measures of predicted numbers and of labels against scikit-learn, plain loops and many draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn import metrics

from fedframe.core.measures import measure, sign_of
from fedframe.core.target_measures import (
    Estimates,
    LabelPredictions,
    evidence_size,
    is_plausible_sum,
    sum_up,
    summed_evidence,
)
from fedframe.data.target import Target
from fedframe.metrics.paired import difference

SCALE = np.array([2.0, 30.0])
NUMBERS = Target("regression", ("a", "b"), torch.tensor([5.0, 100.0]), torch.tensor([2.0, 30.0]))
LABELS = Target("multilabel", ("a", "b", "c"))


def estimates(seed: int = 0, n: int = 60, noise: float = 0.5) -> Estimates:
    draw = np.random.default_rng(seed)
    y = draw.normal((0.0, 3.0), size=(n, 2))
    return Estimates(y + draw.normal(size=y.shape) * noise, y, SCALE)


def labels(seed: int = 0, n: int = 80) -> LabelPredictions:
    draw = np.random.default_rng(seed)
    y = draw.random((n, 3)) < (0.5, 0.3, 0.15)
    return LabelPredictions(1 / (1 + np.exp(-(2 * y - 1 + draw.normal(size=y.shape)))), y)


def test_numbers_are_measured_as_by_scikit_learn() -> None:
    found = estimates()
    y, p = found.truth * SCALE, (found.truth + found.error) * SCALE
    expected = {
        "mae": metrics.mean_absolute_error(y, p),
        "rmse": metrics.root_mean_squared_error(y, p),
        "r2": metrics.r2_score(y, p),
    }
    for metric, value in expected.items():
        one = measure(found, metric)
        assert one is not None
        assert one.value == pytest.approx(value)


@pytest.mark.parametrize("metric", ["mae", "rmse", "r2"])
def test_the_error_of_a_measure_is_its_spread_over_draws(metric: str) -> None:
    found = [measure(estimates(seed, 200).of(slice(None)), metric) for seed in range(400)]
    values = np.array([one.value for one in found if one is not None])
    errors = np.array([one.error for one in found if one is not None])
    # The mean over two independent outputs: the mean of their errors is the most that its own can be.
    assert 1.0 < errors.mean() / values.std() < 1.55
    single = [Estimates(e.truth[:, :1] + e.error[:, :1], e.truth[:, :1], SCALE[:1]) for e in map(estimates, range(300))]
    one = [measure(each, metric) for each in single]
    ratio = np.mean([each.error for each in one if each]) / np.std([each.value for each in one if each])
    assert ratio == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("metric", ["mae", "rmse", "r2"])
def test_influences_add_up_to_the_same_error(metric: str) -> None:
    all_outputs = estimates(3)
    found = Estimates(all_outputs.truth[:, 1:] + all_outputs.error[:, 1:], all_outputs.truth[:, 1:], SCALE[1:])
    moved = found.influences(metric)
    one = measure(found, metric)
    assert one is not None
    assert abs(moved.mean()) < 1e-9
    assert one.error == pytest.approx(math.sqrt((moved**2).mean() / (found.samples - 1)))


def test_sums_over_clients_give_what_all_predictions_give() -> None:
    for target, whole in ((NUMBERS, estimates(5, 90)), (LABELS, labels(5, 90))):
        size = evidence_size(target, len(target.names), 512)
        parts = [sum_up(part, 512) for part in whole.split([20, 30, 40])]
        assert all(part.shape == (size,) for part in parts)
        total = torch.stack(parts).sum(0)
        assert is_plausible_sum(target, total, len(target.names), 512, 90)
        assert not is_plausible_sum(target, total, len(target.names), 512, 89)
        pooled = summed_evidence(target, total, len(target.names), 512)
        assert pooled.samples == 90
        for metric in ("mae", "rmse", "r2") if target is NUMBERS else ("auroc", "accuracy", "f1"):
            exact, summed = measure(whole, metric), measure(pooled, metric)
            assert exact is not None
            assert summed is not None
            close = 1e-9 if metric != "auroc" else 2e-3
            assert summed.value == pytest.approx(exact.value, abs=close)
            assert summed.error == pytest.approx(exact.error, rel=2e-2)


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_sums_that_cannot_be_are_refused(place: int) -> None:
    vector = sum_up(estimates(), 0)
    assert is_plausible_sum(NUMBERS, vector, 2, 0, 60)
    for value in (-1.0, math.nan, math.inf):
        bad = vector.clone()
        bad[place] = value
        assert not is_plausible_sum(NUMBERS, bad, 2, 0, 60)
    assert not is_plausible_sum(NUMBERS, vector[:-1], 2, 0, 60)


def test_labels_are_measured_as_by_scikit_learn() -> None:
    found = labels()
    y, p = found.truth, found.probabilities
    expected = {
        "auroc": metrics.roc_auc_score(y, p, average="macro"),
        "average_precision": metrics.average_precision_score(y, p, average="macro"),
        "f1": metrics.f1_score(y, p >= 0.5, average="macro"),
        "accuracy": 1 - metrics.hamming_loss(y, p >= 0.5),
    }
    for metric, value in expected.items():
        one = measure(found, metric)
        assert one is not None
        assert one.value == pytest.approx(value)


def test_a_label_that_nobody_has_is_left_out_of_the_mean() -> None:
    found = labels()
    truth = found.truth.copy()
    truth[:, 2] = False
    one = measure(LabelPredictions(found.probabilities, truth), "auroc")
    assert one is not None
    assert one.value == pytest.approx(metrics.roc_auc_score(truth[:, :2], found.probabilities[:, :2], average="macro"))


@pytest.mark.parametrize("metric", ["mae", "rmse", "r2"])
def test_the_better_model_has_a_positive_difference_and_its_interval_holds(metric: str) -> None:
    draw = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        y = draw.normal(size=(60, 1))
        shared = draw.normal(size=y.shape)
        first = Estimates(y + 0.5 * shared, y, [3.0])
        second = Estimates(y + 0.5 * shared + 0.1 * draw.normal(size=y.shape), y, [3.0])
        found, back = difference(first, second, metric), difference(second, first, metric)
        assert found is not None
        assert back is not None
        assert back.value == pytest.approx(-found.value)
        truth = {"mae": math.sqrt(2 / math.pi) * 3, "rmse": 3.0, "r2": None}[metric]
        expected = 0.01 if truth is None else truth * (math.sqrt(0.26) - 0.5)  # r2: 0.26 - 0.25
        covered += found.low <= expected <= found.high
    assert covered / 300 > 0.88
    assert sign_of(metric) == (1 if metric == "r2" else -1)


def test_a_diverged_model_is_very_wrong_not_unmeasured() -> None:
    one = measure(Estimates([[math.nan], [1.0]], [[0.0], [1.0]], [1.0]), "mae")
    assert one is not None
    assert one.value > 1e8
