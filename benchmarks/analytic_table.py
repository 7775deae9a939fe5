"""The runs behind docs/methods/analytic.md: `python -m benchmarks.analytic_table --data-dir DIR [--only digits,cifar]`.

Every row is one `fedframe run` in a process of its own. Its scores and costs go into docs/results/analytic.json as soon
as they are there; a row whose command is in that file already is not run again, so that a table that was cut off goes
on where it stopped. With `--unnamed` rows are run again whose entry does not say which commit has made it, and take its
place. `--threads` and the machine's other work change seconds, not scores. `--show` runs nothing and prints the table
of partitions.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV

from benchmarks.origin import origin
from fedframe.jobs.build import JobMaker
from fedframe.runs.folder import RunFolder
from fedframe.util.files import read_json, write_json

RESULTS = Path("docs/results/analytic.json")
SPREAD = ("dirichlet:0.1", "dirichlet:0.5", "dirichlet:5", "classes:2", "iid")
SHARED = "--set analytic.keep_sums=false --no-personal"  # no more than the shared model
TAIL = "longtail:100+dirichlet:0.5"
WRITERS = "npz:{data_dir}/mnist-writers.npz"
SEEDS = (0, 1, 2)
SITES, PEOPLE = 5, 1500  # of the made table
PAIRS, TEST_PAIRS, PLACES = 8000, 2000, 12  # of the made images: two digits, each within a square of so many pixels


@dataclass(frozen=True)
class Row:
    """A run: the group that it is asked for by, and its command, in which {data_dir} and {made} are folders."""

    group: str
    arguments: str

    @property
    def command(self) -> str:
        """As it stands in the results."""
        return f"fedframe run {self.arguments}"

    @property
    def seed(self) -> str:
        """As the command has it."""
        return self.arguments.split("--seed ")[1].split()[0]


def rows() -> Iterator[Row]:
    """All runs, in the order in which they are worth having."""
    fashion, cifar = f"analytic --data fashion-mnist {SHARED}", f"analytic --data cifar10 {SHARED}"
    wide = f"{fashion} --set analytic.width=12288"
    yield from grid("digits", "analytic --data digits", ("dirichlet:0.1", "classes:2", "iid"), SEEDS)
    yield from grid("fashion", fashion, SPREAD[:1], SEEDS[:1])
    for noise in (None, 1.0, 2.0, 4.0, 0.5, 8.0):
        yield private(noise)
    yield from grid("tables", "analytic --data csv:{made}/breast_cancer.csv --label kind --clients 5", ("iid",), SEEDS)
    made = "analytic --data csv:{made}/sites.csv --label ill --client-column site"
    yield from grid("tables", made, ("user",), SEEDS)
    yield from grid("tail", f"{fashion} --set analytic.tail=normalised", (TAIL,), SEEDS)
    new = f"analytic --data {WRITERS} --new-clients 100 --set analytic.keep_sums=false"
    yield from grid("writers", new, ("user",), SEEDS[:1])
    yield from grid("cifar", cifar, SPREAD[:1], SEEDS[:1])
    yield from grid("fashion", fashion, SPREAD[:1], SEEDS[1:])
    yield from grid("fashion", fashion, SPREAD[1:], SEEDS[:1])
    yield from grid("tail", f"{fashion} --set analytic.tail=equal_priors", (TAIL,), SEEDS)
    yield from grid(
        "tables",
        "analytic --data csv:{made}/breast_cancer.csv --label kind --clients 5 --set analytic.width=0",
        ("iid",),
        SEEDS,
    )
    yield from grid("tables", f"{made} --set analytic.width=0", ("user",), SEEDS)
    yield from grid("cifar", cifar, SPREAD[1:], SEEDS[:1])
    yield from grid("tail-personal", "analytic --data fashion-mnist --set analytic.keep_sums=false", (TAIL,), SEEDS)
    for seed in SEEDS:
        yield from pairs(seed)
    whole = "analytic --data fashion-mnist --set analytic.keep_sums=false"
    yield from grid("fashion-personal", whole, SPREAD[:1], SEEDS)
    yield from grid("wide", wide, SPREAD, SEEDS[:1])
    for name in ("fashion-mnist", "cifar10"):  # for its cost: its rate is the default, not tuned
        rounds = f"fedavg --data {name} --model convnet --rounds 100 --epochs 2 --eval-every 0 --no-personal"
        yield from grid("fedavg", rounds, SPREAD[:1], SEEDS[:1])
    yield from grid("cifar-personal", "analytic --data cifar10", SPREAD[:1], SEEDS[:1])
    yield from grid("writers", new, ("user",), SEEDS[1:])
    everybody = f"analytic --data {WRITERS}"
    yield from grid("writers-wide", f"{everybody} --set analytic.width=3456 {SHARED}", ("user",), SEEDS)
    yield from grid("writers-all", f"{everybody} {SHARED}", ("user",), SEEDS)
    yield from grid("fashion", fashion, SPREAD[1:], SEEDS[1:])
    yield from grid("cifar", cifar, SPREAD, SEEDS[1:])
    yield from grid("wide", wide, SPREAD, SEEDS[1:])


def grid(group: str, arguments: str, partitions: Sequence[str], seeds: Sequence[int]) -> Iterator[Row]:
    """A run for every partition and seed."""
    for seed in seeds:
        for partition in partitions:
            yield Row(group, f"{arguments} --partition {partition} --seed {seed}")


def private(noise: float | None) -> Row:
    """One release with noise, or without."""
    common = "analytic --data fashion-mnist --partition dirichlet:0.5 --seed 0 --no-personal --set analytic.width=512"
    asked = (
        ""
        if noise is None
        else f" --privacy-clip 1 --privacy-noise {noise:g} --weighting uniform --set analytic.protect=sample"
    )
    return Row("privacy", common + asked)


def pairs(seed: int) -> Iterator[Row]:
    """A case for a net: what counts is a relation of two places, which a sum over places cannot see."""
    common = f"--data npz:{{made}}/pairs.npz --partition dirichlet:0.5 --no-personal --seed {seed}"
    rounds = "--model convnet --rounds 30 --epochs 2 --batch 32 --lr 0.05 --lr-schedule cosine --eval-every 10"
    yield Row("pairs", f"analytic {common}")
    for method in ("central", "fedavg", "fedavg+analytic"):
        yield Row("pairs", f"{method} {common} {rounds}")
    longer = rounds.replace("--rounds 30 --epochs 2", "--rounds 50 --epochs 5")
    yield Row("pairs-long", f"fedavg {common} {longer} --clients 5")


# -- data that are made here -------------------------------------------------------------------------------------------
def write_sites(path: Path) -> None:
    """A table with categories, five sites that differ in who comes to them, and a label that needs interactions."""
    draw = np.random.default_rng(0)
    lines = ["age,pressure,smokes,blood,work,site,ill"]
    for _ in range(PEOPLE):
        site = int(draw.integers(SITES))
        age, pressure = draw.normal(40 + 6 * site, 14), draw.normal(120 + 2 * site, 15)
        smokes = draw.choice(["never", "before", "daily"], p=[0.6 - 0.06 * site, 0.2, 0.2 + 0.06 * site])
        blood, work = draw.choice(["A", "B", "AB", "0"]), draw.choice(["desk", "field", "none"])
        score = 0.05 * (age - 50) + 0.04 * (pressure - 125) + {"never": -0.8, "before": 0.0, "daily": 1.2}[str(smokes)]
        score += 1.0 if work == "field" and smokes == "daily" else 0.0
        ill = "yes" if draw.random() < 1 / (1 + np.exp(-score)) else "no"
        lines.append(f"{age:.1f},{pressure:.1f},{smokes},{blood},{work},site{site},{ill}")
    path.write_text("\n".join(lines) + "\n")


def write_breast_cancer(path: Path) -> None:
    """scikit-learn's table of 569 tumours with 30 measurements."""
    table = load_breast_cancer()
    lines = [",".join([*(f"m{i}" for i in range(table.data.shape[1])), "kind"])]
    for values, kind in zip(table.data, table.target, strict=True):
        lines.append(",".join([*(f"{value:g}" for value in values), str(table.target_names[kind])]))
    path.write_text("\n".join(lines) + "\n")


def write_pairs(path: Path) -> None:
    """Images of two of scikit-learn's digits, each somewhere in its half; the class is the larger one.

    Digits of test images are in no training image.
    """
    digits, draw = load_digits(), np.random.default_rng(0)
    order, side = draw.permutation(len(digits.images)), digits.images.shape[1]
    cut, arrays = len(order) * 4 // 5, dict[str, Any]()
    for name, pool, count in (("train", order[:cut], PAIRS), ("test", order[cut:], TEST_PAIRS)):
        both, x = draw.choice(pool, (2, count)), np.zeros((count, 1, PLACES, 2 * PLACES), np.float32)
        for half, chosen in enumerate(both):
            for image, number, (top, left) in zip(
                x[:, 0], chosen, draw.integers(PLACES - side + 1, size=(count, 2)), strict=True
            ):
                start = half * PLACES + left
                image[top : top + side, start : start + side] = digits.images[number] / 16
        arrays |= {f"x_{name}": x, f"y_{name}": digits.target[both].max(0)}
    np.savez(path, **arrays)


# -- runs --------------------------------------------------------------------------------------------------------------
def perform(row: Row, data_dir: Path, threads: int) -> dict[str, Any]:
    """Run it; what is kept of it."""
    with tempfile.TemporaryDirectory() as folder:
        made, out = Path(folder), Path(folder) / "run"
        write_sites(made / "sites.csv")
        write_breast_cancer(made / "breast_cancer.csv")
        write_pairs(made / "pairs.npz")
        words = [word.format(data_dir=data_dir, made=made) for word in row.arguments.split()]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, "-m", "fedframe", "run", *words, "--data-dir", str(data_dir), "--workers", "1"]
        subprocess.run([*command, "--out", str(out)], check=True, env=environment, stdout=subprocess.DEVNULL)
        summary, log = read_json(out / "summary.json"), out / "log.txt"
        found = pooled_regression(out) if row.group == "tables" else {}
        said = log.read_text() if log.exists() else ""
    return record(row, summary, said) | found | origin() | {"threads": threads}


def record(row: Row, summary: dict[str, Any], log: str) -> dict[str, Any]:
    """What is kept of a run."""
    scores = summary["scores"]
    fitted = re.search(r"([\d,]+) features, ridge ([\d.e+-]+)", log)
    kept = {
        "group": row.group,
        "command": row.command,
        "data": row.arguments.split("--data ")[1].split()[0],
        "partition": summary["partition"],
        "clients": summary["clients"],
        "rounds": summary["rounds"],
        "seed": summary["seed"],
        "features": int(fitted.group(1).replace(",", "")) if fitted else None,
        "ridge": float(fitted.group(2)) if fitted else None,
        **{name: scores[name]["final"] for name in ("generic", "client", "personal")},
        **{name: summary[name] for name in ("per_group", "seconds", "cpu_seconds", "peak_memory_mb")},
        **{name: summary[name] for name in ("bytes_up_total", "bytes_down_total", "privacy")},
    }
    if "new" in scores:
        kept["new"] = scores["new"]
    return kept


def pooled_regression(run: Path) -> dict[str, Any]:
    """scikit-learn's logistic regression on the pooled training data of a run, on the same test set.

    Its penalty is the default, and that which five folds of the training data prefer.
    """
    federation = JobMaker(RunFolder.open(run).settings(), None, None).federation
    source, kept = federation.source, federation.train.values
    assert source.test is not None
    x, y = source.batch(source.train, kept).numpy(), source.train.y[kept].numpy()
    x_test, y_test = source.batch(source.test, torch.arange(len(source.test))).numpy(), source.test.y.numpy()
    models = {
        "": LogisticRegression(max_iter=5000),
        "_cv": LogisticRegressionCV(cv=5, max_iter=5000, scoring="accuracy"),
    }
    return {
        f"pooled_logistic_regression{name}": float(model.fit(x, y).score(x_test, y_test))
        for name, model in models.items()
    }


def show(table: dict[str, Any]) -> Iterator[str]:
    """The table of partitions as Markdown: generic accuracy, its mean over seeds and how many, and the dearest run.

    The spread is that of the first seed. Runs that were made on a slower machine do not count as the dearest.
    """
    runs, slower = table["runs"], table.get("without_bfloat16", [])
    groups = ("digits", "fashion", "cifar", "wide", "data-map")
    plain = [run for run in runs if run["partition"] in SPREAD and run["group"] in groups]
    plain = [run for run in plain if run["personal"] is None or run["data"] == "digits"]
    yield f"| data | features | map | {' | '.join(f'`{each}`' for each in SPREAD)} | spread | CPU seconds |"
    yield "|---" * (len(SPREAD) + 5) + "|"
    kinds = {(run["data"], run["features"], "analytic.map=data" in run["command"]) for run in plain}
    for data, features, from_data in sorted(
        kinds, key=lambda kind: (kind[0] != "digits", kind[0] == "cifar10", *kind[1:])
    ):
        cells, first, cost = list[str](), list[float](), 0.0
        for partition in SPREAD:
            found = [
                run
                for run in plain
                if (run["data"], run["features"], run["partition"]) == (data, features, partition)
                and ("analytic.map=data" in run["command"]) == from_data
            ]
            first += [run["generic"] for run in found if run["seed"] == SEEDS[0]]
            mean = sum(run["generic"] for run in found) / max(len(found), 1)
            seeds = f" ({len(found)} seeds)" if len(found) > 1 else ""
            cells.append(f"{mean:.4f}".lstrip("0") + seeds if found else "")
            cost = max([cost, *(run["cpu_seconds"] for run in found if run not in slower)])
        spread = f"{max(first) - min(first):.4f}".lstrip("0") if len(first) > 1 else ""
        name = "`data`" if from_data else "`fixed`"
        yield f"| `{data}` | {features:,} | {name} | {' | '.join(cells)} | {spread} | {cost:.0f} |"


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, default=Path())
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", default="", help="groups, separated by commas")
    parser.add_argument("--seeds", default="", help="seeds, separated by commas")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--unnamed", action="store_true", help="also rows whose entry names no commit")
    parser.add_argument("--show", action="store_true")
    given = parser.parse_args()
    if given.show:
        print("\n".join(show(read_json(given.results))))
        return
    groups, seeds = ({name for name in asked.split(",") if name} for asked in (given.only, given.seeds))
    for row in rows():
        table = read_json(given.results) if given.results.exists() else {"runs": []}
        if row.command in {each["command"] for each in table["runs"] if "commit" in each or not given.unnamed}:
            continue
        if (groups and row.group not in groups) or (seeds and row.seed not in seeds):
            continue
        try:
            found = perform(row, given.data_dir.absolute(), given.threads)
        except subprocess.CalledProcessError:
            print(f"failed: {row.command}", flush=True)
            continue
        table = read_json(given.results) if given.results.exists() else table  # again: another process may have written
        table["runs"] = [*(each for each in table["runs"] if each["command"] != row.command), found]
        write_json(given.results, table)
        print(json.dumps({name: found[name] for name in ("command", "generic", "personal", "cpu_seconds")}), flush=True)


if __name__ == "__main__":
    main()
