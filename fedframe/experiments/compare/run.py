"""`fedframe compare` and `fedframe.compare(...)`: tune where asked, run methods by seeds, show and save the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedframe.data.load import load_raw, read_spec
from fedframe.experiments.compare.files import save, set_aside
from fedframe.experiments.compare.notes import remarks_on
from fedframe.experiments.compare.plan import Plan
from fedframe.experiments.compare.request import ComparisonRequest, make_plan, make_plans
from fedframe.experiments.compare.result import Comparison
from fedframe.experiments.compare.rows import MethodSpec
from fedframe.experiments.compare.tables import make_document
from fedframe.experiments.compare.tuning import Tuned, score_trials, tuning_cells
from fedframe.experiments.grid import Cell, Outcome, choose_grid_display, outcome_of, run_cells
from fedframe.experiments.grid.failures import refuse_failures
from fedframe.experiments.tables import show
from fedframe.jobs.build import Net
from fedframe.jobs.devices import check_device, resolve_device
from fedframe.runs.loggers import refuse_missing
from fedframe.settings import logger_names
from fedframe.util.text import plural


def compare(
    methods: Sequence[MethodSpec] = (),
    *,
    seeds: int | Sequence[int] = 3,
    baseline: str | None = None,
    target: float | None = None,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    select: str = "",
    tuning_seeds: int | None = None,
    data: object = None,
    model: Net | None = None,
    out: str | Path | None = None,
    config: str | Path | None = None,
    cores: int | None = None,
    progress: bool = True,
    command: str = "",
    **settings: Any,
) -> Comparison:
    """Run every method with every seed, on the same clients, splits and initial weights.

    Finished runs are not repeated.

    `methods` are names, texts such as "fedprox?lr=0.1&prox.mu=0.01", parts, recipes, lists of them to be joined, or
    mappings with a `method`, settings of its own and a `label` for the tables. With a `sweep` over one or two settings,
    each method's setting is first chosen on validation data. All other settings are those of `fedframe.run`, and apply
    to every method.
    """
    asked = ComparisonRequest(
        methods, seeds, baseline, target, sweep or {}, select, tuning_seeds, data, model, out, config, settings
    )
    return run_plans([make_plan(asked)], cores, progress, command)[0]


def compare_each(
    methods: Sequence[MethodSpec] = (),
    *,
    cores: int | None = None,
    progress: bool = True,
    command: str = "",
    **asked: Any,
) -> dict[str, Comparison]:
    """Compare in several cases (`alpha=0.1`), if the sweep includes a setting that all methods share. See `compare`."""
    known = {each.name for each in fields(ComparisonRequest)} - {"methods", "settings"}
    named = {name: value for name, value in asked.items() if name in known and value is not None}
    settings = {name: value for name, value in asked.items() if name not in known}
    plans = make_plans(ComparisonRequest(methods, **named, settings=settings))
    return {found.plan.case: found for found in run_plans(plans, cores, progress, command)}


def run_plans(plans: Sequence[Plan], cores: int | None, progress: bool, command: str) -> list[Comparison]:
    """Tune where asked, run, save and show; the cells of all cases are one piece of work."""
    first = plans[0]
    check_device(resolve_device(str(first.settings.get("device", "cpu"))), several=True)
    refuse_missing(logger_names(str(first.settings.get("log", ""))))
    tuned = tune(plans, cores, progress)
    outcomes = final_runs(plans, tuned, cores, progress)
    results = [
        Comparison(plan, found, command or python_command(plan), choice, remarks_on(plan))
        for plan, found, choice in zip(plans, outcomes, tuned, strict=True)
    ]
    top = first.out.parent if len(results) > 1 else first.out
    earlier = set_aside(top, results[0].command)
    paths = [path for result in results for path in result.save()]
    if len(results) > 1:
        paths = save(results, top)
    if progress:
        show(make_document(results))
        if earlier is not None:
            print(f"The tables of an earlier comparison in {top} are now in {earlier}; its runs stay where they are.")
        print(f"Saved: {', '.join(map(str, paths))}")
        print(f"As a page with pictures: fedframe report {top}")
    done = [outcome for result in results for outcome in result.all_outcomes]
    if all(outcome.state == "failed" for outcome in done):
        refuse_failures(done, len(done))
    return results


def tune(plans: Sequence[Plan], cores: int | None, progress: bool) -> list[Tuned | None]:
    """Run every candidate on validation data and choose; nothing where there is nothing to choose."""
    asked = [(plan, plan.tuning) for plan in plans if plan.tuning is not None]
    if not asked:
        return [None for _ in plans]
    candidates = [tuning_cells(plan, tuning) for plan, tuning in asked]
    cells = [cell for found in candidates for cell in found.values()]
    if progress:
        print(f"Tuning: {plural(len(cells), 'run')} on validation data, the test data put aside.", flush=True)
    outcomes = run_with_data(cells, cores, progress)
    return [
        score_trials(plan.rows, found, tuning, outcomes)
        for (plan, tuning), found in zip(asked, candidates, strict=True)
    ]


def final_runs(
    plans: Sequence[Plan], tuned: Sequence[Tuned | None], cores: int | None, progress: bool
) -> list[dict[str, list[Outcome]]]:
    """Run every method's setting for all seeds; a method all of whose candidates diverged has none."""
    cells = [final_cells(plan, choice) for plan, choice in zip(plans, tuned, strict=True)]
    outcomes = run_with_data([cell for found in cells for cell in found.values()], cores, progress)
    return [
        {
            row.label: [outcomes[found[row.label, seed].folder] for seed in plan.seeds if (row.label, seed) in found]
            for row in plan.rows
        }
        for plan, found in zip(plans, cells, strict=True)
    ]


def final_cells(plan: Plan, tuned: Tuned | None) -> dict[tuple[str, int], Cell]:
    """A cell per method and seed, seed by seed: what is stopped early has whole pairs to show."""
    cells = {}
    for seed in plan.seeds:
        for row in plan.rows:
            candidate = tuned.chosen(row) if tuned is not None and tuned.of(row) else row.candidates[0]
            if candidate is not None:
                cells[row.label, seed] = plan.cell(row, candidate, seed)
    return cells


def run_with_data(cells: Sequence[Cell], cores: int | None, progress: bool) -> dict[Path, Outcome]:
    """Run what is left of the cells, once the data are known to be here: cells must not download them side by side."""
    waiting = [cell.settings for cell in cells if cell.data is None and outcome_of(cell).state == "waiting"]
    for settings in {settings.data: settings for settings in waiting}.values():
        place = Path(settings.data_dir) if settings.data_dir else None
        named = (settings.label, settings.client_column)
        load_raw(read_spec(settings.data, place, settings.seed, *named, task=settings.task))
    return run_cells(cells, choose_grid_display(progress), cores=cores)


def python_command(plan: Plan) -> str:
    """The call that a comparison from Python came from, as far as it can be written down."""
    rows = [row.method if row.label == row.method else row.label for row in plan.rows]
    given = [f"{name}={value!r}" for name, value in plan.settings.items()]
    return f"fedframe.compare({', '.join([repr(rows), f'seeds={list(plan.seeds)}', *given])})"
