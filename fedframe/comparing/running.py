"""`fedframe compare` and `fedframe.compare(...)`: tune where asked, run methods by seeds, show and save the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedframe.api import Net, check_device
from fedframe.comparing.notes import remarks_on
from fedframe.comparing.plan import Plan, Tuning
from fedframe.comparing.planning import Request, make_plan
from fedframe.comparing.result import Comparison
from fedframe.comparing.saving import save, show
from fedframe.comparing.tuning import Tuned, judge, tuning_cells
from fedframe.data.load import load_raw, read_spec
from fedframe.errors import RunError
from fedframe.grid import Cell, Outcome, choose_grid_display, outcome_of, run_cells
from fedframe.report.loggers import logger_names, refuse_missing
from fedframe.report.words import plural


def compare(
    methods: Sequence[str | Mapping[str, Any]] = (),
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
    """Run methods by seeds on the same clients, splits and initial weights; what is finished is not run again.

    `methods` are names, texts such as "fedprox?lr=0.1&prox.mu=0.01", or mappings of the same. With a `sweep` over one
    or two settings, each method's setting is first chosen on validation data. All other settings are those of
    `fedframe.run`, for every method.
    """
    asked = Request(
        methods, seeds, baseline, target, sweep or {}, select, tuning_seeds, data, model, out, config, settings
    )
    plan = make_plan(asked)
    check_device(str(plan.settings.get("device", "cpu")))
    refuse_missing(logger_names(str(plan.settings.get("log", ""))))
    tuned = tune(plan, plan.tuning, cores, progress) if plan.tuning is not None else None
    outcomes = final_runs(plan, tuned, cores, progress)
    result = Comparison(plan, outcomes, command or python_command(plan), tuned, remarks_on(plan))
    paths = save(result, plan.out)
    if progress:
        show(result)
        print(f"Saved: {', '.join(map(str, paths))}")
    states = [outcome for found in outcomes.values() for outcome in found]
    if states and all(outcome.state == "failed" for outcome in states):
        raise RunError(f"Not one of {plural(len(states), 'run')} could be made. {states[0].reason}")
    return result


def tune(plan: Plan, tuning: Tuning, cores: int | None, progress: bool) -> Tuned:
    """Run every candidate on validation data and choose."""
    cells = [*tuning_cells(plan, tuning).values()]
    if progress:
        print(f"Tuning: {plural(len(cells), 'run')} on validation data, the test data put aside.", flush=True)
    return judge(plan, tuning, run(cells, cores, progress))


def final_runs(plan: Plan, tuned: Tuned | None, cores: int | None, progress: bool) -> dict[str, list[Outcome]]:
    """Run every method's setting for all seeds; a method all of whose candidates diverged has none."""
    cells = {}
    for seed in plan.seeds:  # seed by seed: what is stopped early has whole pairs to show
        for row in plan.rows:
            candidate = tuned.chosen(row) if tuned is not None and tuned.of(row) else row.candidates[0]
            if candidate is not None:
                cells[row.label, seed] = plan.cell(row, candidate, seed)
    outcomes = run([*cells.values()], cores, progress)
    return {
        row.label: [outcomes[cells[row.label, seed].folder] for seed in plan.seeds if (row.label, seed) in cells]
        for row in plan.rows
    }


def run(cells: Sequence[Cell], cores: int | None, progress: bool) -> dict[Path, Outcome]:
    """Run what is left of the cells, once the data are known to be here: cells must not download them side by side."""
    waiting = next((cell for cell in cells if outcome_of(cell).state == "waiting" and cell.data is None), None)
    if waiting is not None:
        settings = waiting.settings
        place = Path(settings.data_dir) if settings.data_dir else None
        load_raw(read_spec(settings.data, place, settings.seed, settings.label, settings.client_column))
    return run_cells(cells, choose_grid_display(progress), cores=cores)


def python_command(plan: Plan) -> str:
    """The call that a comparison from Python came from, as far as it can be written down."""
    rows = [row.method if row.label == row.method else row.label for row in plan.rows]
    given = [f"{name}={value!r}" for name, value in plan.settings.items()]
    return f"fedframe.compare({', '.join([repr(rows), f'seeds={list(plan.seeds)}', *given])})"
