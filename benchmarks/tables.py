"""Older tables of methods, from before `fedframe bench`: `python -m benchmarks.tables digits --out runs/tables`.

They have no controls. A method whose recipe brings a schedule, weight decay or clipping of its own has no row here,
because a gain might be those'; a test holds that. What follows is how the others were made.

Every method gets the same number of candidate settings. They are compared on a validation share of the training data
(generic accuracy, mean over seeds: of the last five evaluations, or after the server stage where a method has one;
personal accuracy where there is no shared model); the best one is then run on all training data and scored on the test
set; if its training diverges there, which can be seen without the test set, the next best takes its place. What is
finished is not run again, and a killed run is resumed.

A row is named by its method; what follows a comma tells two rows of one method apart.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import fedframe
from fedframe.errors import DivergedError
from fedframe.methods.recipes import make_method
from fedframe.metrics.accuracy import GROUPS
from fedframe.util.files import read_json, write_json, write_text

Values = Mapping[str, Any]


def rates(*values: float, **more: Any) -> list[Values]:
    """Candidates that differ in the learning rate."""
    return [{"lr": value, **more} for value in values]


@dataclass(frozen=True)
class Table:
    """What all runs of a table have in common, how candidates are compared, and the candidates."""

    common: Values
    tuning: Values
    methods: Mapping[str, Sequence[Values]]
    seeds: Sequence[int] = (0,)
    tuning_seeds: Sequence[int] = (0,)
    lanes: int = 1  # runs side by side


def of_part(part: str, name: str, value: float, **more: Any) -> Values:
    """A candidate that sets something of a part."""
    return {"set": {part: {name: value}}, **more}


def server_rates(part: str, *values: float) -> list[Values]:
    """Candidates of a method whose server has a learning rate, too."""
    return [of_part(part, "lr", value, lr=lr) for value in values for lr in (0.05, 0.1)]


DIGITS: Values = {
    "data": "digits",
    "partition": "dirichlet:0.1",
    "clients": 20,
    "epochs": 5,
    "batch": 32,
    "momentum": 0.9,
    "workers": 1,
}
DIGITS_METHODS: Mapping[str, Sequence[Values]] = {
    **{name: rates(0.02, 0.05, 0.1, 0.2) for name in ("fedavg", "fedprox", "scaffold", "moon")},
    "fedloge": [of_part("sse_c", "norm", norm, lr=lr) for norm in (1.0, 3.0) for lr in (0.05, 0.1)],
    "fedrane": rates(0.02, 0.05, 0.1, 0.2),
}
SERVER_OPTIMIZERS: Mapping[str, Sequence[Values]] = {
    "fedavgm": server_rates("fedavgm", 0.1, 1.0),
    "fedadagrad": server_rates("fedadagrad", 0.01, 0.03),
    "fedadam": server_rates("fedadam", 0.01, 0.03),
    "fedyogi": server_rates("fedyogi", 0.01, 0.03),
}
SHARED_BASELINES = (
    "fedmmd",
    "fedaws",
    "fedrs",
    "ratioloss",
    "ccvr",
    "fedbabu",
    "fedrod",
    "ditto",
    "pfedme",
)
PERSONAL_BASELINES = ("fedper", "fedrep", "fedproto", "apple", "fedmtl")
FLOOR_AND_CEILING = ("local", "central")
BASELINES = (*SHARED_BASELINES, *PERSONAL_BASELINES, *FLOOR_AND_CEILING)
NORM = {"model": "benchmarks/nets.py:NormNet"}  # FedBN needs a net with BatchNorm, and FedAvg with the same beside it
THREE = (0, 1, 2)
FASHION: Values = {
    "data": "fashion-mnist",
    "partition": "dirichlet:0.1",
    "clients": 20,
    "model": "convnet",
    "epochs": 5,
    "batch": 128,
    "momentum": 0.9,
    "workers": 1,
}
TITLES = {  # the files of docs/results/older
    "digits-10-rounds": "`digits`, 10 rounds",
    "digits-30-rounds": "`digits`, 30 rounds",
    "fashion-mnist-30-rounds": "Fashion-MNIST, 30 rounds",
    "fashion-mnist-20-rounds": "Fashion-MNIST, 20 rounds",
    "fashion-mnist-longtail": "Fashion-MNIST, `longtail:100+dirichlet:0.5`, 30 rounds",
}
TABLES = {
    "digits": Table({**DIGITS, "rounds": 30}, {"validate_share": 0.2}, DIGITS_METHODS, THREE, THREE, lanes=2),
    "digits-short": Table(
        {**DIGITS, "rounds": 10},
        {"validate_share": 0.2},
        {
            **DIGITS_METHODS,
            "fednova": rates(0.02, 0.05, 0.1, 0.2),
            **SERVER_OPTIMIZERS,
            **{name: rates(0.02, 0.05, 0.1, 0.2) for name in BASELINES},
            "pfedme": rates(0.01, 0.02, 0.04, 0.06),  # from .133 on it refuses: its pull is strong
            "ratioloss": rates(0.005, 0.01, 0.02, 0.05),  # its class weights, up to 6, multiply the steps
            "fedavg, net with BatchNorm": rates(0.005, 0.01, 0.02, 0.05, **NORM),
            "fedbn": rates(0.05, 0.1, 0.2, 0.4, **NORM),
        },
        THREE,
        THREE,
        lanes=2,
    ),
    # One rate for all, the one that was best for FedAvg in the table of 30 rounds: no tuning, no score for it.
    "fashion-baselines": Table(
        {**FASHION, "rounds": 20},
        {},
        {
            **{name: rates(0.04) for name in ("fedavg", *BASELINES)},
            # At .04 with momentum both go astray: APPLE's authors have .01, and Ratio Loss multiplies its steps.
            "apple, smaller rate": rates(0.01),
            "ratioloss, smaller rate": rates(0.01),
            "fedavg, net with BatchNorm": rates(0.04, **NORM),
            "fedbn": rates(0.04, **NORM),
        },
        lanes=2,
    ),
    # The settings that were chosen in the table of 30 rounds.
    "fashion-longtail": Table(
        {**FASHION, "partition": "longtail:100+dirichlet:0.5", "rounds": 30},
        {},
        {
            "fedavg": rates(0.04),
            "fedrod": rates(0.04),
            "fedloge": [of_part("sse_c", "norm", 3.0, lr=0.04)],
        },
        lanes=2,
    ),
    "fashion": Table(
        {**FASHION, "rounds": 30},
        # A schedule over 30 rounds is nearly constant in the first ten; one over ten would favour other rates.
        {"validate_share": 0.5, "rounds": 10, "lr_schedule": "constant"},
        {
            "fedavg": rates(0.02, 0.04, 0.08),
            "fedloge": [*rates(0.04, 0.08), of_part("sse_c", "norm", 3.0, lr=0.04)],
            **{name: rates(0.02, 0.04, 0.08) for name in ("fedrane", "fedprox")},
            "scaffold": rates(0.005, 0.01, 0.02),  # at .04 its variates run away
            "moon": rates(0.02, 0.04, 0.08),
        },
        lanes=2,
    ),
}


def perform(cell: tuple[Path, str, dict[str, Any]]) -> dict[str, Any]:
    """Run one cell, unless it has been run; its summary, or none if its training diverged."""
    folder, name, values = cell
    try:
        if (folder / "config.yaml").exists():
            fedframe.resume(folder, progress=False)
        else:
            fedframe.run(method_of(name), out=folder, progress=False, **values)
    except DivergedError:
        return {}
    found: dict[str, Any] = read_json(folder / "summary.json")
    return found


def method_of(row: str) -> str:
    """The method of a row."""
    return row.partition(",")[0]


def tuning_score(summary: Mapping[str, Any]) -> float:
    """What candidates are compared by: a method with a server stage is meant to be used after it."""
    if not summary:
        return 0.0
    method = make_method(summary["method"], {})
    if not method.shares_a_model:
        return float(summary["scores"]["personal"]["final"])
    stage = method.optional_slot("server_stage")
    return float(summary["scores"]["generic"]["last_five" if stage is None else "final"])


def label(values: Values) -> str:
    """A candidate as options of the command line."""
    parts = [f"--set {part}.{key}={v:g}" for part, pairs in values.get("set", {}).items() for key, v in pairs.items()]
    plain = [
        f"--{key} {value:g}" if isinstance(value, float) else f"--{key} {value}"
        for key, value in values.items()
        if key != "set"
    ]
    return " ".join([*plain, *parts])


def fill(name: str, out: Path, only: Sequence[str], data_dir: str | None, stage: str) -> None:
    """Tune and run the methods of a table, and write what was found."""
    table = TABLES[name]
    place = {"data_dir": data_dir} if data_dir else {}
    chosen = {method: found for method, found in table.methods.items() if not only or method in only}
    with ProcessPoolExecutor(table.lanes) as pool:
        means = tune(pool, table, chosen, out / name / "tuning", place)
        for method in chosen:
            print(name, method, means[method], flush=True)
        if stage == "tune":
            return
        ranked = {
            method: sorted(candidates, key=partial(worst_last, means[method])) for method, candidates in chosen.items()
        }
        # The last ones of a table take the longest: begun first, they leave no core idle at the end.
        begun = {}
        for method in reversed(chosen):
            cells = finals(table, out / name / "final", method, ranked[method][0], place)
            begun[method] = [pool.submit(perform, cell) for cell in cells]
        rows = []
        for method in chosen:
            summaries = [future.result() for future in begun[method]]
            for candidate in ranked[method]:
                if candidate is not ranked[method][0]:
                    cells = finals(table, out / name / "final", method, candidate, place)
                    summaries = list(pool.map(perform, cells))
                if all(summaries):
                    break
                print(name, method, f"{label(candidate)} diverged on all training data", flush=True)
            rows.append(row(method, candidate, means[method], summaries))
    write_json(out / f"{name}.json", rows)
    write_text(out / f"{name}.md", markdown(rows))


def tune(
    pool: ProcessPoolExecutor, table: Table, chosen: Mapping[str, Sequence[Values]], out: Path, place: Values
) -> dict[str, dict[str, float]]:
    """The validation score of every candidate, by its label; nothing to run where there is only one."""
    cells = {}
    for method, candidates in chosen.items():
        personal = not make_method(method_of(method), {}).shares_a_model
        for candidate in candidates if len(candidates) > 1 else ():
            for seed in table.tuning_seeds:
                values = {**table.common, **table.tuning, **candidate, "seed": seed, "personal": personal, **place}
                cells[method, label(candidate), seed] = (folder_of(out, method, candidate) / str(seed), method, values)
    found = dict(zip(cells, map(tuning_score, pool.map(perform, cells.values())), strict=True))
    means: dict[str, dict[str, float]] = {method: {} for method in chosen}
    for method, candidate_label, _ in cells:
        scores = [found[method, candidate_label, seed] for seed in table.tuning_seeds]
        means[method][candidate_label] = statistics.mean(scores)
    return means


def worst_last(means: Mapping[str, float], candidate: Values) -> float:
    """For sorting: of equals the earlier candidate stays in front."""
    return -means.get(label(candidate), 0.0)


def finals(
    table: Table, out: Path, method: str, candidate: Values, place: Values
) -> list[tuple[Path, str, dict[str, Any]]]:
    """The runs of a chosen candidate on all training data, one per seed."""
    folder = folder_of(out, method, candidate)
    return [(folder / str(seed), method, {**table.common, **candidate, "seed": seed, **place}) for seed in table.seeds]


def folder_of(out: Path, method: str, candidate: Values) -> Path:
    """Named after the settings: a table whose candidates have changed never meets an old folder."""
    return out / method / label(candidate).replace(" ", "").replace("/", "-")


def row(method: str, best: Values, tuning: dict[str, float], summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One line of a table."""

    def over_seeds(score: str, kind: str) -> list[float]:
        return [summary["scores"][score][kind] for summary in summaries]

    return {
        "method": method,
        "settings": label(best),
        "tuning": tuning,
        "generic": over_seeds("generic", "last_five"),
        "generic_final": over_seeds("generic", "final"),
        "client": over_seeds("client", "final"),
        "personal": over_seeds("personal", "final"),
        "per_group": [summary.get("per_group") for summary in summaries],
        "seconds": [summary["seconds"] for summary in summaries],
        "cpu_seconds": [summary.get("cpu_seconds") for summary in summaries],
    }


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table for people: mean and, over several seeds, the deviation; classes by frequency on a long tail."""
    tuned = any(line["tuning"] for line in rows)
    groups = GROUPS if all(is_tailed(line) for line in rows) else ()
    heads = [
        "method",
        "chosen on the validation share" if tuned else "settings",
        *("generic, last five", "generic, final"),
        *groups,
        *("client", "personal", "CPU seconds"),
    ]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for line in rows:
        scores = [spread(line[key]) for key in ("generic", "generic_final")]
        scores += [spread([found[group] for found in line["per_group"]]) for group in groups]
        scores += [spread(line[key]) for key in ("client", "personal")]
        name, _, what = line["method"].partition(",")
        known = [seconds for seconds in line["cpu_seconds"] if seconds is not None]
        cost = f"{statistics.mean(known):,.0f}" if known else "-"
        lines.append(f"| `{name}`{what and ','}{what} | `{line['settings']}` | {' | '.join(scores)} | {cost} |")
    return "\n".join(lines) + "\n"


def is_tailed(line: Mapping[str, Any]) -> bool:
    """Whether some classes are so rare that no group is empty."""
    return all(found and None not in found.values() for found in line.get("per_group") or [None])


def spread(values: Sequence[float | None]) -> str:
    """Mean and standard deviation; a dash where there is no such score."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean = f"{statistics.mean(known):.3f}".lstrip("0")
    return mean if len(known) == 1 else f"{mean} ± {f'{statistics.stdev(known):.3f}'.lstrip('0')}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--out", type=Path, default=Path("runs/tables"))
    parser.add_argument("--methods", default="", help="only these rows, joined with semicolons")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--stage", choices=("tune", "all"), default="all")
    given = parser.parse_args()
    fill(given.table, given.out, [m for m in given.methods.split(";") if m], given.data_dir, given.stage)
