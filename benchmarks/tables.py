"""Tables of methods with one tuning budget for all: `python -m benchmarks.tables digits --out runs/tables`.

Every method gets the same number of candidate settings. They are compared on a validation share of the training data
(generic accuracy, mean over seeds: of the last five evaluations, or after the server stage where a method has one); the
best one is then run on all training data and scored on the test set; if its training diverges there, which can be seen
without the test set, the next best takes its place. What is finished is not run again, and a killed run is resumed.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fedframe
from fedframe.core.files import read_json, write_json, write_text
from fedframe.errors import DivergedError
from fedframe.recipes import make_method

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
    notes: str = field(default="")


def of_part(part: str, name: str, value: float, **more: Any) -> Values:
    """A candidate that sets something of a part."""
    return {"set": {part: {name: value}}, **more}


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
    "spherefed": rates(0.2, 0.5, 1.0, 2.0),
    "fedetf": [of_part("temperature", "beta", beta, lr=lr) for beta in (5.0, 10.0) for lr in (0.05, 0.1)],
    "fedavg_etf": [of_part("etf", "scale", scale, lr=lr) for scale in (1.0, 1.5) for lr in (0.05, 0.1)],
    "fedloge": [of_part("sse_c", "norm", norm, lr=lr) for norm in (1.0, 3.0) for lr in (0.05, 0.1)],
    "fedrane": rates(0.02, 0.05, 0.1, 0.2),
}
THREE = (0, 1, 2)
TABLES = {
    "digits": Table({**DIGITS, "rounds": 30}, {"validate_share": 0.2}, DIGITS_METHODS, THREE, THREE, lanes=2),
    "digits-short": Table({**DIGITS, "rounds": 10}, {"validate_share": 0.2}, DIGITS_METHODS, THREE, THREE, lanes=2),
    "fashion": Table(
        {
            "data": "fashion-mnist",
            "partition": "dirichlet:0.1",
            "clients": 20,
            "model": "convnet",
            "epochs": 5,
            "batch": 128,
            "momentum": 0.9,
            "rounds": 30,
            "workers": 1,
        },
        # A schedule over 30 rounds is nearly constant in the first ten; one over ten would favour other rates.
        {"validate_share": 0.5, "rounds": 10, "lr_schedule": "constant"},
        {
            "fedavg": rates(0.02, 0.04, 0.08),
            "spherefed": rates(0.2, 0.5, 1.0),
            "fedetf": rates(0.02, 0.04, 0.08),
            "fedavg_etf": [*rates(0.04, 0.08), of_part("etf", "scale", 1.5, lr=0.04)],
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
    folder, method, values = cell
    try:
        if (folder / "config.yaml").exists():
            fedframe.resume(folder, progress=False)
        else:
            fedframe.run(method, out=folder, progress=False, **values)
    except DivergedError:
        return {}
    found: dict[str, Any] = read_json(folder / "summary.json")
    return found


def tuning_score(summary: Mapping[str, Any]) -> float:
    """What candidates are compared by: a method with a server stage is meant to be used after it."""
    if not summary:
        return 0.0
    stage = make_method(summary["method"], {}).optional_slot("server_stage")
    return float(summary["scores"]["generic"]["last_five" if stage is None else "final"])


def label(values: Values) -> str:
    """A candidate as options of the command line."""
    parts = [f"--set {part}.{key}={v:g}" for part, pairs in values.get("set", {}).items() for key, v in pairs.items()]
    return " ".join([*(f"--{key} {value:g}" for key, value in values.items() if key != "set"), *parts])


def fill(name: str, out: Path, only: Sequence[str], data_dir: str | None, stage: str) -> None:
    """Tune and run the methods of a table, and write what was found."""
    table = TABLES[name]
    place = {"data_dir": data_dir} if data_dir else {}
    chosen = {method: found for method, found in table.methods.items() if not only or method in only}
    tuning = {
        (method, number, seed): (
            out / name / "tuning" / method / f"{number}-{seed}",
            method,
            {**table.common, **table.tuning, **candidate, "seed": seed, "personal": False, **place},
        )
        for method, candidates in chosen.items()
        for number, candidate in enumerate(candidates)
        for seed in table.tuning_seeds
    }
    with ProcessPoolExecutor(table.lanes) as pool:
        found = dict(zip(tuning, map(tuning_score, pool.map(perform, tuning.values())), strict=True))
        means = {
            method: [
                statistics.mean(found[method, number, seed] for seed in table.tuning_seeds)
                for number in range(len(candidates))
            ]
            for method, candidates in chosen.items()
        }
        ranked = {
            method: [candidate for _, candidate in sorted(zip(means[method], candidates, strict=True), key=first)]
            for method, candidates in chosen.items()
        }
        labelled = {method: dict(zip(map(label, chosen[method]), means[method], strict=True)) for method in chosen}
        for method in chosen:
            print(name, method, labelled[method], flush=True)
        if stage == "tune":
            return
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
            rows.append(row(method, candidate, labelled[method], summaries))
    write_json(out / f"{name}.json", rows)
    write_text(out / f"{name}.md", markdown(rows))


def first(scored: tuple[float, Values]) -> float:
    """For sorting: the best score first; of equals the earlier candidate stays in front."""
    return -scored[0]


def finals(
    table: Table, out: Path, method: str, candidate: Values, place: Values
) -> list[tuple[Path, str, dict[str, Any]]]:
    """The runs of a chosen candidate on all training data, one per seed."""
    folder = out / method / label(candidate).replace(" ", "")
    return [(folder / str(seed), method, {**table.common, **candidate, "seed": seed, **place}) for seed in table.seeds]


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
        "seconds": [summary["seconds"] for summary in summaries],
        "cpu_seconds": [summary.get("cpu_seconds") for summary in summaries],
    }


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table for people: mean and, over several seeds, the standard deviation."""
    lines = [
        "| method | chosen on the validation share | generic, last five | generic, final | client | personal |",
        "|---|---|---|---|---|---|",
    ]
    for line in rows:
        scores = [spread(line[key]) for key in ("generic", "generic_final", "client", "personal")]
        lines.append(f"| `{line['method']}` | `{line['settings']}` | {' | '.join(scores)} |")
    return "\n".join(lines) + "\n"


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
    parser.add_argument("--methods", default="", help="only these, joined with commas")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--stage", choices=("tune", "all"), default="all")
    given = parser.parse_args()
    fill(given.table, given.out, [m for m in given.methods.split(",") if m], given.data_dir, given.stage)
