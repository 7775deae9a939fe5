"""Intervals, paired tests and Holm's correction against plain loops in float64 and against scipy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from fedframe.metrics.statistics import estimate, holm, paired

# t(0.975, df) from printed tables.
QUANTILES = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 29: 2.045}

shares = st.floats(0, 1).map(lambda x: round(x, 4))


def plain_mean(values: Sequence[float]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def plain_deviation(values: Sequence[float]) -> float:
    mean, total = plain_mean(values), 0.0
    for value in values:
        total += (value - mean) ** 2
    return math.sqrt(total / (len(values) - 1))


def plain_p(t: float, df: int) -> float:
    """Two tails of Student's density, by numerical integration of its formula."""
    factor = math.gamma((df + 1) / 2) / (math.sqrt(df * math.pi) * math.gamma(df / 2))
    tail, _ = integrate.quad(lambda x: factor * (1 + x * x / df) ** (-(df + 1) / 2), abs(t), math.inf)
    return 2 * float(tail)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 10, 30])
def test_interval_is_the_one_of_printed_tables(count: int) -> None:
    values = [0.5 + 0.01 * (i % 3) + 0.002 * i for i in range(count)]
    found = estimate(values)
    half = QUANTILES[count - 1] * plain_deviation(values) / math.sqrt(count)
    assert found.mean == pytest.approx(plain_mean(values))
    assert found.low == pytest.approx(plain_mean(values) - half, abs=2e-4 * half + 1e-5)
    assert found.high == pytest.approx(plain_mean(values) + half, abs=2e-4 * half + 1e-5)
    assert found.count == count


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(shares, min_size=2, max_size=12))
def test_interval_equals_scipys(values: list[float]) -> None:
    found = estimate(values)
    if len(set(values)) == 1:
        assert found.low == pytest.approx(values[0])
        assert found.high == pytest.approx(values[0])
        return
    low, high = stats.t.interval(0.95, len(values) - 1, plain_mean(values), stats.sem(values))
    assert [found.low, found.high] == pytest.approx([low, high])


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.tuples(shares, shares), min_size=2, max_size=10))
def test_paired_difference_is_the_hand_formula_and_scipys(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = zip(*pairs, strict=True)
    differences = [a - b for a, b in pairs]
    found = paired(ours, theirs)
    mean, deviation, count = plain_mean(differences), plain_deviation(differences), len(pairs)
    assert found.mean == pytest.approx(mean, abs=1e-12)
    assert found.pairs == count
    if deviation < 1e-10:
        assert found.p == (1.0 if abs(mean) < 1e-10 else None)
        return
    error = deviation / math.sqrt(count)
    assert found.p == pytest.approx(plain_p(mean / error, count - 1), abs=1e-6)
    assert found.p == pytest.approx(stats.ttest_1samp(differences, 0.0).pvalue, abs=1e-9)
    half = float(stats.t.ppf(0.975, count - 1)) * error
    assert [found.low, found.high] == pytest.approx([mean - half, mean + half], abs=1e-9)


def test_interval_without_zero_and_small_p_say_the_same() -> None:
    found = paired([0.9, 0.92, 0.91], [0.8, 0.83, 0.80])
    assert found.low is not None
    assert found.low > 0
    assert found.p is not None
    assert found.p < 0.05


def test_pairs_are_the_seeds_in_which_both_have_the_score() -> None:
    found = paired([0.9, None, 0.8, 0.7], [0.8, 0.1, None, 0.5])
    assert found.pairs == 2
    assert found.mean == pytest.approx(0.15)
    assert found.p == pytest.approx(stats.ttest_rel([0.9, 0.7], [0.8, 0.5]).pvalue)


def test_too_few_seeds_give_a_mean_and_a_sentence_and_no_number_that_would_lie() -> None:
    one = paired([0.9], [0.8])
    assert (one.low, one.high, one.p, one.pairs) == (None, None, None, 1)
    assert one.mean == pytest.approx(0.1)
    assert "two or more" in one.remark
    none = paired([None, 0.4], [0.3, None])
    assert (none.mean, none.p, none.pairs) == (None, None, 0)
    assert (estimate([0.4]).mean, estimate([0.4]).low) == (0.4, None)
    assert estimate([None, None]).mean is None


def test_equal_runs_are_equal_and_not_a_division_by_zero() -> None:
    found = paired([0.5, 0.7, 0.9], [0.5, 0.7, 0.9])
    assert (found.mean, found.low, found.high, found.p) == (0.0, None, None, 1.0)
    assert "Equal to the baseline" in found.remark


def test_same_difference_in_every_seed_has_no_p_value_even_if_rounding_leaves_a_spread() -> None:
    found = paired([0.1 + 0.2, 0.5, 0.6 + 0.1], [0.2, 0.4, 0.6])  # each 0.1, but not in float64
    assert found.mean == pytest.approx(0.1)
    assert (found.low, found.high, found.p) == (None, None, None)
    assert "no interval and no p-value" in found.remark


def plain_holm(values: Sequence[float]) -> list[float]:
    """Definition: the adjusted p of H_i is the largest of (m - k + 1) p_(k) over all k up to its place."""
    order = sorted(values)
    m = len(values)
    return [min(1.0, max((m - k) * order[k] for k in range(order.index(p) + 1))) for p in values]


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8, unique=True))
def test_holm_is_its_definition_and_rejects_what_the_step_down_rejects(values: list[float]) -> None:
    found = holm(values)
    assert found == pytest.approx(plain_holm(values))
    rejected = 0
    for k, p in enumerate(sorted(values)):  # Holm's procedure at 5 %
        if p > 0.05 / (len(values) - k):
            break
        rejected += 1
    exact = sum(p is not None and p <= 0.05 for p in found)
    edge = any(abs((len(values) - k) * p - 0.05) < 1e-12 for k, p in enumerate(sorted(values)))
    assert exact == rejected or edge


def test_holm_leaves_missing_ones_out_of_the_count() -> None:
    assert holm([0.01, None, 0.03]) == [0.02, None, 0.03]
    assert holm([]) == []
    assert holm([0.4, 0.4, 0.9]) == [1.0, 1.0, 1.0]
