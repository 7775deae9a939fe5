"""The search for a row's settings: the grid grows where the best is at its end, and every row has the same budget."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedframe.experiments.bench.cost import planned_rounds
from fedframe.experiments.bench.rows import BenchRow
from fedframe.experiments.bench.scene import TuningSpec
from fedframe.experiments.bench.search import Choice, Step, extended, rate_of, search_row
from fedframe.experiments.compare.address import Address
from fedframe.experiments.compare.rows import Candidate, MethodRow
from fedframe.experiments.compare.tuning import Trial

RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
PLAIN = BenchRow(MethodRow("fedavg", "fedavg"))
MU = Address("mu", "prox")
PROX = BenchRow(MethodRow("fedprox", "fedprox"), main=(MU, (0.1, 0.001)))
Score = Callable[[Candidate, int], float | None]


def drive(
    row: BenchRow, spec: TuningSpec, score: Score, rounds: int = 100, metric: str = "accuracy"
) -> tuple[Choice, list[Step]]:
    """Take a search to its end with made-up scores."""
    search, steps = search_row(row, spec, rounds), []
    step = next(search)
    while True:
        steps.append(step)
        trials = [Trial(row.row, c, (score(c, step.rounds),), ("finished",), metric) for c in step.candidates]
        try:
            step = search.send(trials)
        except StopIteration as end:
            return end.value, steps


def near(peak: float) -> Score:
    """Better the nearer a rate is to a peak; a main setting makes no difference."""
    return lambda candidate, rounds: 1 - abs(math.log((rate_of(candidate) or 1) / peak)) / 50


def runs(steps: list[Step]) -> list[tuple[Candidate, int]]:
    """All runs, those that two steps share once."""
    return [*dict.fromkeys((candidate, step.rounds) for step in steps for candidate in step.candidates)]


def test_rate_inside_the_grid_needs_no_more_rates() -> None:
    choice, steps = drive(PLAIN, TuningSpec(rates=RATES), near(0.1))
    assert rate_of(choice.candidate) == 0.1
    assert not choice.at_end
    assert len(runs(steps)) == 5 + 2


@pytest.mark.parametrize(("peak", "best"), [(5.0, 3.33), (0.001, 0.00111), (11.1, 11.1)])
def test_grid_grows_at_the_end_that_is_best(peak: float, best: float) -> None:
    choice, _ = drive(PLAIN, TuningSpec(rates=RATES, refine=0), near(peak))
    assert rate_of(choice.candidate) == best


@pytest.mark.parametrize("mode", ["full", "halving"])
def test_of_errors_the_smallest_is_the_best(mode: str) -> None:
    def error(candidate: Candidate, rounds: int) -> float:
        return 1 + abs(math.log((rate_of(candidate) or 1) / 0.1))

    spec = TuningSpec.model_validate({"mode": mode, "rates": RATES, "refine": 0})
    choice, _ = drive(PLAIN, spec, error, metric="mae")
    assert rate_of(choice.candidate) == 0.1
    assert not choice.at_end


def test_growth_is_bounded_and_a_best_rate_at_the_end_is_said() -> None:
    choice, steps = drive(PLAIN, TuningSpec(rates=RATES, extend=2, refine=0), near(1e6))
    assert len(runs(steps)) == 5 + 2
    assert rate_of(choice.candidate) == pytest.approx(11.1)
    assert choice.at_end


def test_grid_grows_downwards_while_everything_diverges() -> None:
    small = near(0.0033)
    choice, _ = drive(PLAIN, TuningSpec(rates=RATES), lambda c, r: None if (rate_of(c) or 1) > 0.004 else small(c, r))
    assert rate_of(choice.candidate) == 0.00333
    choice, _ = drive(PLAIN, TuningSpec(rates=RATES), lambda *_: None)
    assert choice.candidate is None


def test_squared_error_starts_from_a_larger_grid() -> None:
    row = BenchRow(PLAIN.row, rate_factor=10.0)
    _, steps = drive(row, TuningSpec(rates=RATES), near(1.0))
    assert [rate_of(candidate) for candidate in steps[0].candidates] == [10 * rate for rate in RATES]


@pytest.mark.parametrize("mode", ["full", "halving"])
@given(peak=st.floats(0.02, 0.5))
def test_methods_with_and_without_a_main_setting_have_the_same_budget(mode: str, peak: float) -> None:
    spec = TuningSpec.model_validate({"mode": mode, "rates": RATES})
    of_plain, of_prox = (sorted(r for _, r in runs(drive(row, spec, near(peak))[1])) for row in (PLAIN, PROX))
    assert of_plain == of_prox == sorted(planned_rounds(spec, 100))


def test_halving_keeps_the_better_half_and_doubles_the_rounds() -> None:
    choice, steps = drive(PLAIN, TuningSpec(mode="halving", start=0.1, rates=RATES, refine=0), near(0.1))
    assert [(len(step.candidates), step.rounds) for step in steps] == [(5, 10), (3, 20), (2, 40)]
    assert rate_of(choice.candidate) == 0.1


def test_later_rungs_overrule_earlier_ones() -> None:
    # A large rate is ahead early, a small one later on.
    def score(candidate: Candidate, rounds: int) -> float | None:
        return near(0.3 if rounds < 15 else 0.1)(candidate, rounds)

    choice, _ = drive(PLAIN, TuningSpec(mode="halving", start=0.1, rates=RATES, refine=0), score)
    assert rate_of(choice.candidate) == 0.1


def test_grid_also_grows_where_only_a_later_rung_prefers_its_end() -> None:
    def score(candidate: Candidate, rounds: int) -> float | None:
        return near(0.3 if rounds < 15 else 3.0)(candidate, rounds)

    choice, steps = drive(PLAIN, TuningSpec(mode="halving", start=0.1, rates=RATES, refine=0), score)
    assert rate_of(choice.candidate) == 3.33
    assert {step.rounds for step in steps[3:]} == {40}  # with the rounds that the last comparison had
    assert not choice.at_end


def test_main_setting_is_tried_at_the_best_rate_and_kept_if_it_is_better() -> None:
    def score(candidate: Candidate, rounds: int) -> float | None:
        return (near(0.1)(candidate, rounds) or 0) + (0.1 if dict(candidate.values).get(MU) == 0.1 else 0)

    choice, steps = drive(PROX, TuningSpec(rates=RATES), score)
    assert str(choice.candidate) == "lr=0.1 prox.mu=0.1"
    assert [str(c) for c in steps[-1].candidates] == ["lr=0.1", "lr=0.1 prox.mu=0.1", "lr=0.1 prox.mu=0.001"]
    worse, _ = drive(PROX, TuningSpec(rates=RATES), near(0.1))
    assert str(worse.candidate) == "lr=0.1"  # of equals the method's own setting


def test_row_without_a_main_setting_tries_rates_between_the_neighbours() -> None:
    _, steps = drive(PLAIN, TuningSpec(rates=RATES), near(0.1))
    assert [rate_of(candidate) for candidate in steps[-1].candidates] == [0.1, 0.173, 0.0548]


@pytest.mark.slow
@given(st.lists(st.floats(1e-4, 10).map(lambda r: float(f"{r:.2g}")), min_size=5, max_size=8, unique=True).map(sorted))
def test_longer_grid_still_rises_and_holds_the_shorter_one(rates: list[float]) -> None:
    up, down = extended(rates, rates[-1]), extended(rates, None)
    assert up[:-1] == down[1:] == rates
    assert up[-1] > up[-2]
    assert down[0] < down[1]
    assert extended(rates, rates[2]) == rates
