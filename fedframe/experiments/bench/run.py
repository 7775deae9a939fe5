"""`fedframe bench`: list the scenes, say what would be run, run it, write the result and its page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from fedframe.data.files import data_root
from fedframe.data.load import read_spec
from fedframe.errors import DataError, RunError, SettingError, nearest
from fedframe.experiments.bench.cost import Speed, estimate, planned_rounds, train_samples
from fedframe.experiments.bench.page import make_page
from fedframe.experiments.bench.record import make_record
from fedframe.experiments.bench.rows import BenchRow, bench_rows, for_case
from fedframe.experiments.bench.scene import Scene, load_scene, place_data, scene_names
from fedframe.experiments.bench.search import tune_together
from fedframe.experiments.compare.notes import remarks_on
from fedframe.experiments.compare.plan import AS_THEY_ARE, Plan
from fedframe.experiments.compare.request import case_folders
from fedframe.experiments.compare.result import Comparison
from fedframe.experiments.compare.rows import MethodRow
from fedframe.experiments.compare.run import final_runs, run_with_data
from fedframe.experiments.grid import Cell, Outcome
from fedframe.experiments.grid.archive import pack, unpack
from fedframe.experiments.tables import markdown, show
from fedframe.jobs.devices import check_device, resolve_device
from fedframe.util.files import read_json, write_json, write_text
from fedframe.util.text import duration, plural

RUNS = Path("runs", "bench")


@dataclass(frozen=True)
class Bench:
    """What is asked for."""

    scene: str
    methods: Sequence[str] = ()
    rows: Sequence[str] = ()  # patterns
    controls: bool = True
    runs: Path = RUNS  # the folder of all scenes' runs
    out: Path | None = None  # where the result and its page go; None: beside the runs
    machine: Mapping[str, Any] = field(default_factory=dict)  # device, data_dir
    cases: Sequence[str] = ()  # patterns
    cells: Path | None = None  # a file of finished runs, to take from and to add to


@dataclass(frozen=True)
class Prepared:
    """A bench that is checked and may be run."""

    scene: Scene
    rows: Sequence[BenchRow]
    left_out: Sequence[str]  # sentences on controls that are not here
    plans: Sequence[Plan]  # one per case


def prepare(asked: Bench) -> Prepared:
    """Read and check everything, before anything is run."""
    scene = load_scene(asked.scene)
    rows, left_out = bench_rows(scene, asked.methods, asked.rows, asked.controls)
    seeds = tuple(range(scene.seeds))
    folders = case_folders(asked.runs / scene.name, scene.case_names)
    plans = []
    for case in chosen_cases(scene, asked.cases):
        settings = {name: value for name, value in scene.problem(case).items() if name != "set"}
        samples = train_samples(scene, settings)
        placed = place_data(settings, asked.machine.get("data_dir"))
        plans.append(
            Plan(
                [for_case(each, settings, samples) for each in rows],
                seeds,
                {**placed, "device": asked.machine.get("device", "cpu")},
                baseline=rows[0].row.label,
                out=folders[case],
                case=case,
                scores=("generic.last", *scene.scores),
            )
        )
    return Prepared(scene, rows, left_out, plans)


def chosen_cases(scene: Scene, patterns: Sequence[str]) -> list[str]:
    """The cases that are asked for, all without any pattern."""
    if not patterns:
        return scene.case_names
    found = [case for case in scene.case_names if any(fnmatch(case, pattern.strip()) for pattern in patterns)]
    for pattern in patterns:
        if not any(fnmatch(case, pattern.strip()) for case in scene.case_names):
            raise SettingError(f"{scene.name} has no case {pattern!r}; {nearest(pattern, scene.case_names)}")
    return found


def bench(asked: Bench, *, cores: int | None = None, progress: bool = True, command: str = "") -> dict[str, Any]:
    """Tune, run, write SCENE.json and SCENE.md; what is finished is not run again."""
    scene_runs = asked.runs / load_scene(asked.scene).name
    data_dir = data_root(
        read_spec("digits", Path(asked.machine["data_dir"]) if asked.machine.get("data_dir") else None)
    )
    if asked.cells is not None and asked.cells.exists():
        taken = unpack(asked.cells, scene_runs, data_dir)
        if progress and taken:
            print(f"{plural(taken, 'finished run')} taken from {asked.cells}.", flush=True)
    ready = prepare(asked)
    check_device(resolve_device(str(asked.machine.get("device", "cpu"))), several=True)
    speed = Speed(asked.runs)
    expected = estimate(ready.scene, ready.rows, speed)
    if progress:
        print(plan_sentence(ready, expected), flush=True)

    def run(cells: Sequence[Cell]) -> Mapping[Path, Outcome]:
        return run_with_data(cells, cores, progress) if cells else {}

    try:
        tuned, outcomes = tune_together(ready.plans, ready.rows, ready.scene.tuning, run)
        final = final_runs(ready.plans, tuned, cores, progress)
    finally:
        if asked.cells is not None:
            pack(asked.cells, scene_runs, data_dir)
    outcomes |= {each.cell.folder: each for case in final for found in case.values() for each in found}
    text = command or f"fedframe bench {asked.scene}"
    comparisons = [
        Comparison(plan, found, text, choice, remarks_on(plan))
        for plan, found, choice in zip(ready.plans, final, tuned, strict=True)
    ]
    folder = asked.out if asked.out is not None else asked.runs / ready.scene.name
    record = make_record(ready.scene, ready.rows, comparisons, outcomes, ready.left_out, expected, folder)
    path = folder / f"{ready.scene.name}.json"
    write_json(path, record)
    page = write_page(path)
    if expected:
        speed.keep_ratio(ready.scene.name, 3600 * record["cpu_hours"] / expected * speed.ratio(ready.scene.name))
    if progress:
        show(make_page(record))
        print(f"Saved: {path}, {page}")
    if all(outcome.state == "failed" for outcome in outcomes.values()):
        raise RunError(
            f"Not one of {plural(len(outcomes), 'run')} could be made. {next(iter(outcomes.values())).reason}"
        )
    return record


def write_page(path: Path) -> Path:
    """Write the page of a result beside it."""
    record = read_json(path)
    if not isinstance(record, dict) or "results" not in record:
        raise DataError(f"{path} holds no result of a bench; 'fedframe bench quick' makes one.")
    page = path.with_suffix(".md")
    write_text(page, markdown(make_page(record)).rstrip() + "\n")
    return page


def plan_sentence(ready: Prepared, expected: float | None) -> str:
    """How much there is to do."""
    scene = ready.scene
    tuned = sum(each.tuned and not each.like for each in ready.rows)
    trials = len(ready.plans) * tuned * len(planned_rounds(scene.tuning, int(scene.settings["rounds"])))
    final = len(ready.plans) * len(ready.rows) * scene.seeds
    cost = f", about {duration(expected)} of processor time" if expected is not None else ""
    return (
        f"{scene.name}: {plural(len(ready.rows), 'row')} in {plural(len(ready.plans), 'case')}; about "
        f"{plural(trials, 'tuning run')} on held-out training data, {plural(final, 'run')} on the test data{cost}."
    )


def describe(asked: Bench) -> None:
    """Print the rows, their candidates and the final cells; run nothing."""
    ready = prepare(asked)
    scene = ready.scene
    print(plan_sentence(ready, estimate(scene, ready.rows, Speed(asked.runs))))
    for sentence in ready.left_out:
        print(sentence)
    lengths = Counter(planned_rounds(scene.tuning, int(scene.settings["rounds"])))
    print(f"Tuning runs of a row: {', '.join(f'{count} of {rounds} rounds' for rounds, count in lengths.items())}.")
    for plan in ready.plans:
        print(f"\n{plan.case or scene.title}")
        planned = [facts_of(scene, plan, each, row) for each, row in zip(ready.rows, plan.rows, strict=True)]
        usual = {name: Counter(facts[name] for facts in planned).most_common(1)[0][0] for name in planned[0]}
        print(f"  all rows, unless said otherwise: {', '.join(filter(None, usual.values()))}")
        for row, facts in zip(plan.rows, planned, strict=True):
            others = [text for name, text in facts.items() if text and text != usual[name]]
            method = f" ({row.method})" if row.method != row.label else ""
            print(f"  {row.label}{method}{': ' if others else ''}{', '.join(others)}")


def facts_of(scene: Scene, plan: Plan, each: BenchRow, row: MethodRow) -> dict[str, str]:
    """What a row trains with, and its candidates, as short texts by what they are about."""
    settings = plan.settings_of(row, AS_THEY_ARE, plan.seeds[0])
    facts = {name: f"{name} {getattr(settings, name)}" for name in ("rounds", "epochs", "batch")}
    facts["steps"] = "" if settings.steps is None else plural(settings.steps, "step") + " a round instead of epochs"
    facts["schedule"] = f"{settings.lr_schedule} learning rate"
    rates = ", ".join(f"{rate * each.rate_factor:g}" for rate in scene.tuning.rates)
    facts["lr"] = f"tuned lr {rates}" if each.tuned else f"lr {settings.lr:g}"
    if each.like:
        facts["lr"] = f"lr as chosen for {each.like}"
    facts["main"] = ""
    if each.main is not None and not each.like:
        facts["main"] = f"then {each.main[0]} {', '.join(map(str, each.main[1][: scene.tuning.refine]))}"
    return facts


def print_scenes(runs: Path = RUNS) -> None:
    """List the scenes that come along, with about how long they take on this machine."""
    from rich.console import Console
    from rich.table import Table

    speed = Speed(runs)
    grid = Table(box=None, padding=(0, 2, 0, 0))
    for head in ("scene", "rows", "cases", "CPU time", "what it shows"):
        grid.add_column(head, no_wrap=head != "what it shows")
    for name in scene_names():
        scene = load_scene(name)
        rows, _ = bench_rows(scene)
        cost = estimate(scene, rows, speed)
        shown = duration(cost) if cost is not None else "not known"
        grid.add_row(name, str(len(rows)), str(len(scene.case_names)), shown, scene.title)
    console = Console()
    console.print(grid)
    console.print(
        "CPU time: from steps measured on this machine (divide by the cores that are free), right within a factor of "
        "two; better for a scene that was run before. Try first: fedframe bench quick",
        highlight=False,
    )
