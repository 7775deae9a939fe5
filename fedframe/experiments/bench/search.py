"""How a row's settings are chosen: the same steps and the same budget for every row, on held-out training data alone.

1. All rates of the grid. If the best is the first or the last, the grid grows there, a few times at most.
2. By halving: the better half again with twice the rounds, until one is left. Else all rounds at once.
3. A few more candidates around the best: other values of the row's main setting, or, for a row that has none, rates
   between the best and its neighbours. So a method with a setting of its own has no larger budget than one without.

Each row is a generator that asks for trials and is sent their scores; all rows take each step together, so that their
runs go side by side as one piece of work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedframe.experiments.bench.rows import BenchRow
from fedframe.experiments.bench.scene import TuningSpec
from fedframe.experiments.compare.address import Address
from fedframe.experiments.compare.plan import Plan, Tuning
from fedframe.experiments.compare.rows import Candidate, MethodRow
from fedframe.experiments.compare.tuning import PERSONAL, Trial, Tuned, make_trial, refuse_failed, tuning_cell
from fedframe.experiments.grid.cell import Cell, Outcome
from fedframe.methods.recipes import make_method

RATE = Address("lr")
DIGITS = 3  # of a rate


@dataclass(frozen=True)
class Step:
    """Candidates to be compared after so many rounds."""

    candidates: Sequence[Candidate]
    rounds: int


@dataclass(frozen=True)
class RoundTrial(Trial):
    """A trial, and after how many rounds it was scored."""

    rounds: int = 0


@dataclass(frozen=True)
class Choice:
    """What was chosen for a row; None if every candidate diverged."""

    candidate: Candidate | None
    at_end: bool  # whether the best rate is still the first or last of the grid


@dataclass(frozen=True)
class BenchTuned(Tuned):
    """All trials of a case, and the choices that the search came to."""

    choices: Mapping[str, Choice] = field(default_factory=dict)  # by label
    selects: Mapping[str, str] = field(default_factory=dict)  # the score that each row was chosen by

    def of(self, row: MethodRow) -> list[Trial]:
        """The trials of a row, whatever its candidates were called when they were made."""
        return [trial for trial in self.trials if trial.row.label == row.label]

    def chosen(self, row: MethodRow) -> Candidate | None:
        """The search's choice."""
        return self.choices[row.label].candidate if row.label in self.choices else None

    def plain(self) -> dict[str, Any]:
        """All trials as plain values; those that count are the last of each row."""
        found = super().plain()
        for each, trial in zip(found["trials"], self.trials, strict=True):
            each["rounds"] = trial.rounds if isinstance(trial, RoundTrial) else 0
        ends = [label for label, choice in self.choices.items() if choice.at_end]
        return {**found, "select": dict(self.selects), "at_end_of_grid": ends}


Search = Generator[Step, Sequence[Trial], Choice]


def search_row(row: BenchRow, spec: TuningSpec, rounds: int) -> Search:
    """The steps of one row."""
    rungs = spec.rungs(rounds)
    rates = [rounded(rate * row.rate_factor) for rate in spec.rates]
    trials = yield Step([*map(of_rate, rates)], rungs[0])
    left = spec.extend
    while left and (longer := extended(rates, rate_of(best(trials)))) != rates:
        rates, left = longer, left - 1
        trials = yield Step([*map(of_rate, rates)], rungs[0])
    reached = rungs[0]
    for rung in rungs[1:]:
        alive = better_half(trials)
        if len(alive) < 2:
            break
        trials, reached = (yield Step(alive, rung)), rung
    winner = best(trials)
    if winner is None:
        return Choice(None, at_end=True)
    while left and (longer := extended(rates, rate_of(winner))) != rates:  # a later rung may prefer an end of the grid
        (new,) = {*longer} - {*rates}
        rates, left = longer, left - 1
        winner = best((yield Step([winner, of_rate(new)], reached))) or winner
    at_end = rate_of(winner) in (rates[0], rates[-1])
    further = refinements(row, winner, rates)[: spec.refine]
    if further:
        winner = best((yield Step([winner, *further], reached)))
    return Choice(winner, at_end)


def of_rate(rate: float) -> Candidate:
    """A rate with the method's own settings."""
    return Candidate(((RATE, rate),))


def rate_of(candidate: Candidate | None) -> float | None:
    """The learning rate of a candidate."""
    return None if candidate is None else float(dict(candidate.values)[RATE])


def best(trials: Sequence[Trial]) -> Candidate | None:
    """The candidate with the best mean (of errors the least), of equals the first; None if a run of each diverged."""
    known = [(trial.worth, -number) for number, trial in enumerate(trials) if trial.worth is not None]
    return trials[-max(known)[1]].candidate if known else None


def better_half(trials: Sequence[Trial]) -> list[Candidate]:
    """The better half, rounded up, in the order of the grid."""
    known = sorted((trial for trial in trials if trial.worth is not None), key=lambda trial: -(trial.worth or 0.0))
    kept = {trial.candidate for trial in known[: math.ceil(len(trials) / 2) if len(trials) > 2 else 1]}
    return [trial.candidate for trial in trials if trial.candidate in kept]


def extended(rates: Sequence[float], chosen: float | None) -> list[float]:
    """The grid with one more rate where the best is at its end; downwards if all have diverged."""
    if chosen is None or chosen == rates[0]:
        return [rounded(rates[0] * rates[0] / rates[1]), *rates]
    if chosen == rates[-1]:
        return [*rates, rounded(rates[-1] * rates[-1] / rates[-2])]
    return [*rates]


def refinements(row: BenchRow, winner: Candidate, rates: Sequence[float]) -> list[Candidate]:
    """Other values of the main setting at the best rate; for a row without one, rates beside the best."""
    if row.main is not None:
        address, values = row.main
        return [Candidate((*winner.values, (address, value))) for value in values]
    place = rates.index(float(dict(winner.values)[RATE]))
    steps = {-1: rates[max(place, 1) - 1] / rates[max(place, 1)], 1: rates[min(place, len(rates) - 2) + 1]}
    steps[1] /= rates[min(place, len(rates) - 2)]
    return [of_rate(rounded(rates[place] * math.sqrt(steps[side]))) for side in (1, -1)]


def rounded(rate: float) -> float:
    """A rate in three digits: it is part of tables and of folders' names."""
    return float(f"{rate:.{DIGITS}g}")


def select_for(row: MethodRow, select: str) -> str:
    """The score that a row is chosen by: without a shared model there is only the clients' own."""
    return select if make_method(row.method, {}).shares_a_model else PERSONAL


RunCells = Callable[[Sequence[Cell]], Mapping[Path, Outcome]]


def tune_together(
    plans: Sequence[Plan], rows: Sequence[BenchRow], spec: TuningSpec, run: RunCells
) -> tuple[list[BenchTuned], dict[Path, Outcome]]:
    """Take every row of every case through its search; also the outcomes of all tuning runs, by folder."""
    searches = {
        (case, each.row.label): search_row(each, spec, int(plan.settings["rounds"]))
        for case, plan in enumerate(plans)
        for each in rows
        if each.tuned and not each.like
    }
    asked: dict[tuple[int, str], Step] = {key: next(search) for key, search in searches.items()}
    trials: dict[tuple[int, str], dict[tuple[Candidate, int], RoundTrial]] = {key: {} for key in searches}
    choices: dict[tuple[int, str], Choice] = {}
    outcomes: dict[Path, Outcome] = {}
    while asked:
        cells = {key: step_cells(plans[key[0]], key[1], step, spec) for key, step in asked.items()}
        flat = [cell for of_step in cells.values() for seeds in of_step.values() for cell in seeds]
        found = run([cell for cell in flat if cell.folder not in outcomes])
        outcomes |= found
        refuse_failed([outcomes[cell.folder] for cell in flat])
        following: dict[tuple[int, str], Step] = {}
        for key, step in asked.items():
            scored = step_trials(plans[key[0]], key[1], step, cells[key], outcomes, spec)
            trials[key] |= {(trial.candidate, trial.rounds): trial for trial in scored}
            try:
                following[key] = searches[key].send(scored)
            except StopIteration as end:
                choices[key] = end.value
        asked = following
    return [case_result(case, plan, rows, spec, trials, choices) for case, plan in enumerate(plans)], outcomes


def row_of(plan: Plan, label: str) -> MethodRow:
    """The row of that name."""
    return next(row for row in plan.rows if row.label == label)


def step_cells(plan: Plan, label: str, step: Step, spec: TuningSpec) -> dict[Candidate, list[Cell]]:
    """The runs of a step, one per candidate and tuning seed."""
    row = row_of(plan, label)
    tuning = Tuning(select_for(row, spec.select), spec.share, plan.seeds[: spec.seeds])
    shorter = replace(plan, settings={**plan.settings, "rounds": step.rounds})
    return {
        candidate: [tuning_cell(shorter, tuning, row, candidate, seed) for seed in tuning.seeds]
        for candidate in step.candidates
    }


def step_trials(
    plan: Plan,
    label: str,
    step: Step,
    cells: Mapping[Candidate, Sequence[Cell]],
    outcomes: Mapping[Path, Outcome],
    spec: TuningSpec,
) -> list[RoundTrial]:
    """The scores of a step's candidates."""
    row = row_of(plan, label)
    found = []
    for candidate in step.candidates:
        of_candidate = [outcomes[cell.folder] for cell in cells[candidate]]
        trial = make_trial(row, candidate, of_candidate, select_for(row, spec.select))
        found.append(RoundTrial(row, candidate, trial.values, trial.states, trial.metric, step.rounds))
    return found


def case_result(
    case: int,
    plan: Plan,
    rows: Sequence[BenchRow],
    spec: TuningSpec,
    trials: Mapping[tuple[int, str], Mapping[tuple[Candidate, int], RoundTrial]],
    choices: Mapping[tuple[int, str], Choice],
) -> BenchTuned:
    """What was tried and chosen in a case; a row that is like another has its choice and trials."""
    found: list[Trial] = []
    chosen: dict[str, Choice] = {}
    for each in rows:
        key = (case, each.like or each.row.label)
        if key in choices:
            chosen[each.row.label] = choices[key]
            found += [replace(trial, row=row_of(plan, each.row.label)) for trial in trials[key].values()]
    selects = {each.row.label: select_for(each.row, spec.select) for each in rows if each.tuned}
    return BenchTuned(Tuning(spec.select, spec.share, plan.seeds[: spec.seeds]), found, choices=chosen, selects=selects)
