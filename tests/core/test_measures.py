"""Every measure against scikit-learn, errors against simulation, tallies against exact values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from fedframe.core.measures import (
    Measured,
    Predictions,
    auroc,
    bins_error,
    brier,
    class_f1,
    f1_of_class,
    mean_of_independent,
    measure,
    merged,
    of_class,
    share_of,
)
from fedframe.core.tally import Tally, calibration_error, is_plausible, make_tally, tally_size
from fedframe.metrics.calibration import Calibration
from fedframe.metrics.measure_table import measure_table
from fedframe.settings import Settings

BINS = Settings().score_bins


def drawn(classes: int, samples: int, seed: int, sure: float = 1.0, rare: float = 1.0) -> Predictions:
    """Predictions of a net that knows something; `sure` scales its logits, `rare` makes later classes rarer."""
    draw = np.random.default_rng(seed)
    shares = rare ** np.arange(classes)
    labels = np.concatenate([np.arange(classes), draw.choice(classes, samples - classes, p=shares / shares.sum())])
    logits = sure * (draw.normal(size=(samples, classes)) + 1.5 * np.eye(classes)[labels])
    p = np.exp(logits - logits.max(1, keepdims=True))
    return Predictions((p / p.sum(1, keepdims=True)).astype(np.float32), labels)


def value(found: Measured | None) -> float:
    assert found is not None
    return found.value


def reference(metric: str, given: Predictions, at: float = 0.9) -> float:
    p, y, C = given.probabilities, given.labels, given.classes
    predicted = p.argmax(1)
    if metric == "accuracy":
        return float(sk.accuracy_score(y, predicted))
    if metric == "balanced_accuracy":
        return float(sk.balanced_accuracy_score(y, predicted))
    if metric == "f1":
        return float(sk.f1_score(y, predicted, average="macro"))
    found = []
    for c in [1] if C == 2 else range(C):
        own = y == c
        if metric == "auroc":
            found.append(sk.roc_auc_score(own, p[:, c]))
        elif metric == "average_precision":
            found.append(sk.average_precision_score(own, p[:, c]))
        else:
            false, hits, _ = sk.roc_curve(own, p[:, c], drop_intermediate=False)
            if metric == "sensitivity":
                found.append(max(hits[false <= 1 - at + 1e-12]))
            else:
                found.append(max((1 - false)[hits >= at - 1e-12]))
    return float(np.mean(found))


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize(
    "metric", ["accuracy", "balanced_accuracy", "f1", "auroc", "average_precision", "sensitivity", "specificity"]
)
def test_every_metric_is_scikit_learns(metric: str, classes: int) -> None:
    for seed, rare in ((0, 1.0), (1, 0.4)):
        given = drawn(classes, 300, seed, rare=rare)
        for at in (0.9, 0.5):
            assert value(measure(given, metric, at=at)) == pytest.approx(reference(metric, given, at), abs=1e-9)


@pytest.mark.parametrize("classes", [2, 5])
def test_brier_score_and_f1_of_each_class_are_scikit_learns(classes: int) -> None:
    given = drawn(classes, 200, 3)
    p = given.probabilities / given.probabilities.sum(1, keepdims=True)
    expected = sk.brier_score_loss(given.labels, p[:, 1] if classes == 2 else p)
    assert value(brier(given)) == pytest.approx(expected, abs=1e-6)
    each = sk.f1_score(given.labels, given.probabilities.argmax(1), average=None)
    assert class_f1(given.confusion).tolist() == pytest.approx(each.tolist())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40))
def test_auroc_with_ties_is_the_share_of_ordered_pairs(pairs: list[tuple[int, bool]]) -> None:
    scores, own = np.array([p[0] / 8 for p in pairs]), np.array([p[1] for p in pairs])
    given = Predictions(np.stack([1 - scores, scores], 1), own.astype(int))
    found = measure(given, "auroc")
    ordered = [1.0 if a > b else 0.5 if a == b else 0.0 for a in scores[own].tolist() for b in scores[~own].tolist()]
    if not ordered:
        assert found is None
    else:
        assert value(found) == pytest.approx(sum(ordered) / len(ordered))


def test_delongs_error_is_that_of_its_formula_in_plain_loops() -> None:
    given = drawn(2, 60, 5)
    x, y = given.probabilities[given.labels == 1, 1], given.probabilities[given.labels == 0, 1]

    def kernel(a: float, b: float) -> float:
        return 1.0 if a > b else 0.5 if a == b else 0.0

    v10 = [sum(kernel(a, b) for b in y) / len(y) for a in x]
    v01 = [sum(kernel(a, b) for a in x) / len(x) for b in y]
    variance = np.var(v10, ddof=1) / len(x) + np.var(v01, ddof=1) / len(y)
    assert auroc(given.scores(1)).error == pytest.approx(float(np.sqrt(variance)), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "metric", ["accuracy", "balanced_accuracy", "f1", "auroc", "average_precision", "sensitivity", "specificity"]
)
@pytest.mark.parametrize("classes", [2, 4])
def test_errors_are_the_spread_over_samples_drawn_anew(metric: str, classes: int) -> None:
    many = [drawn(classes, 250, seed, rare=0.7) for seed in range(150)]
    found = [measure(given, metric) for given in many[:15]]
    spread = float(np.std([value(measure(given, metric)) for given in many]))
    claimed = float(np.mean([one.error for one in found if one is not None]))
    # Of a mean over classes the error is an upper bound where only binned or class-wise scores are looked at.
    most = 2.2 if classes > 2 else 1.35
    assert 0.7 * spread < claimed < most * spread


@pytest.mark.slow
def test_an_interval_holds_the_true_value_in_nineteen_of_twenty_draws() -> None:
    everything = drawn(2, 40_000, 1, rare=0.3)
    for metric in ("accuracy", "balanced_accuracy", "auroc", "f1"):
        truth = value(measure(everything, metric))
        found = [measure(everything.of(np.arange(k * 200, k * 200 + 200)), metric) for k in range(200)]
        inside = sum(one is not None and one.low <= truth <= one.high for one in found)
        assert 180 <= inside <= 200, metric


def test_all_right_is_no_proof_of_a_perfect_model() -> None:
    perfect = Predictions(np.array([[0.9, 0.1]] * 6 + [[0.2, 0.8]] * 3), np.array([0] * 6 + [1] * 3))
    for metric in ("accuracy", "balanced_accuracy", "auroc", "average_precision", "f1", "sensitivity", "specificity"):
        found = measure(perfect, metric)
        assert found is not None
        assert found.value == 1
        assert found.low < 0.9


def test_wilsons_interval_is_scipys() -> None:
    from scipy.stats import binomtest

    for hits, count in ((0, 7), (3, 9), (95, 100), (12, 12)):
        expected = binomtest(hits, count).proportion_ci(method="wilson")
        found = share_of(hits, count)
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_metrics_that_need_two_classes_are_none_with_one_and_of_nothing_there_is_none() -> None:
    one_class = Predictions(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]))
    assert measure(one_class, "auroc") is None
    assert value(measure(one_class, "balanced_accuracy")) == 0.5
    nothing = Predictions(np.empty((0, 3)), np.empty(0))
    assert measure(nothing, "accuracy") is None
    assert brier(nothing) is None


def test_the_positive_class_can_be_the_first() -> None:
    given = drawn(2, 100, 2, rare=0.2)
    own = given.labels == 0
    expected = sk.average_precision_score(own, given.probabilities[:, 0])
    assert value(measure(given, "average_precision", positive=0)) == pytest.approx(float(expected))


def test_the_error_of_a_mean_over_clients_is_that_of_independent_ones() -> None:
    found = mean_of_independent([Measured(0.5, 0.3), Measured(0.9, 0.4)])
    assert found is not None
    assert (found.value, found.error) == pytest.approx((0.7, 0.25))


# -- tallies -----------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("sure", [0.02, 0.3, 1.0, 4.0, 12.0])
@pytest.mark.parametrize("classes", [2, 10])
def test_pooled_auroc_of_histograms_is_within_a_thousandth_at_the_default_bins(classes: int, sure: float) -> None:
    sites = [drawn(classes, samples, seed, sure, 0.8) for seed, samples in enumerate((40, 400, 2000))]
    total = sum((make_tally(each, BINS) for each in sites), torch.zeros(tally_size(classes, BINS), dtype=torch.float64))
    tally = Tally.of(total, classes, BINS)
    pooled = Predictions(
        np.concatenate([each.probabilities for each in sites]), np.concatenate([each.labels for each in sites])
    )
    for metric in ("auroc", "average_precision", "sensitivity", "specificity"):
        exact, binned = measure(pooled, metric), measure(tally, metric)
        most = {"auroc": 0.001, "average_precision": 0.01}.get(metric, 0.02)
        assert abs(value(exact) - value(binned)) < most, metric
    for c in range(classes):
        gap = abs(auroc(pooled.scores(c)).value - auroc(tally.scores(c)).value)
        assert gap <= bins_error(tally.scores(c)) + 1e-12
    for metric in ("accuracy", "balanced_accuracy", "f1"):
        assert measure(tally, metric) == measure(pooled, metric)
    assert value(brier(tally)) == pytest.approx(value(brier(pooled)))
    assert tally.samples == pooled.samples


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 4), st.integers(2, 64), st.integers(0, 10_000), st.floats(0.1, 30))
def test_the_stated_error_of_the_bins_is_never_exceeded(classes: int, bins: int, seed: int, sure: float) -> None:
    given = drawn(classes, 40, seed, sure)
    tally = Tally.of(make_tally(given, bins), classes, bins)
    for c in range(classes):
        exact, binned = given.scores(c), tally.scores(c)
        # Probabilities are float32: of two classes, the first one's are not exactly 1 minus the second's.
        if exact.usable and not (classes == 2 and c == 0):
            assert abs(auroc(exact).value - auroc(binned).value) <= bins_error(binned) + 1e-9


def test_calibration_of_a_tally_is_that_of_the_batches() -> None:
    given = drawn(4, 200, 8, sure=2.0)
    batches = Calibration()
    p = torch.from_numpy(given.probabilities)
    batches.add(p.max(1).values, p.argmax(1) == torch.from_numpy(given.labels))
    found = batches.result()
    assert found is not None
    tally = Tally.of(make_tally(given, BINS), 4, BINS)
    assert calibration_error(tally.calibration) == pytest.approx(found["error"])


def test_probabilities_of_exactly_zero_and_one_have_a_bin() -> None:
    given = Predictions(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([1, 0]))
    assert value(measure(Tally.of(make_tally(given, 8), 2, 8), "auroc")) == 1


def test_a_tally_that_cannot_be_one_is_refused() -> None:
    fine = make_tally(drawn(3, 50, 0), 16)
    assert is_plausible(fine, 3, 16, 50)
    assert not is_plausible(fine, 3, 16, 49)  # more samples than the client has
    assert not is_plausible(-fine, 3, 16, 50)
    assert not is_plausible(fine[:-1], 3, 16, 50)
    more = fine.clone()
    more[0] += 3
    assert not is_plausible(more, 3, 16, 50)  # a class with more scores than samples


def test_scores_counted_together_lose_no_sample() -> None:
    scores = drawn(2, 3000, 4).scores(1)
    fewer = merged(scores, 256)
    assert len(fewer.own) <= 257
    assert (fewer.own.sum(), fewer.others.sum()) == (scores.own.sum(), scores.others.sum())
    exact, coarse = of_class(scores, "auroc"), of_class(fewer, "auroc")
    assert value(exact) == pytest.approx(value(coarse), abs=0.002)


def test_f1_of_a_class_has_an_interval_that_covers_it() -> None:
    shares = np.array([0.15, 0.08, 0.05, 0.72])  # true and false positives, false and true negatives
    truth = 2 * shares[0] / (2 * shares[0] + shares[1] + shares[2])
    found = [f1_of_class(tp, tp + fp + fn) for tp, fp, fn, _ in np.random.default_rng(0).multinomial(80, shares, 2000)]
    assert 0.93 < np.mean([each.low <= truth <= each.high for each in found]) < 0.98
    spread = np.std([each.value for each in found])
    assert np.mean([each.error for each in found]) == pytest.approx(spread, rel=0.15)
    assert f1_of_class(0, 5).value == 0
    assert f1_of_class(5, 5).low < 1


def test_f1_of_each_class_is_in_the_table_with_its_interval() -> None:
    confusion = np.array([[7, 3], [1, 9]])
    y = np.repeat([0, 1], confusion.sum(1))
    said = np.concatenate([np.repeat([0, 1], row) for row in confusion])
    rows = measure_table(Predictions(np.eye(2)[said] * 0.8 + 0.1, y), ["a", "b"], 1, 0.9)["per_class"]
    expected = sk.f1_score(y, said, average=None)
    for row, value in zip(rows.values(), expected, strict=True):
        assert row["f1"]["value"] == pytest.approx(value)
        assert row["f1"]["low"] < value < row["f1"]["high"]
