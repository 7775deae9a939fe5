"""Attack by defence: `python -m benchmarks.poison --out runs/poison --write docs/results/digits-poison.json`.

Every defence meets every attack with none, a tenth and a fifth of 20 clients poisoned, on data dealt out evenly and
unevenly, for three seeds. What is finished is not run again. The table has generic accuracy after the last round, for
the backdoor also the share of stamped test samples that the model takes for the attackers' class. Nothing is tuned:
every defence has its defaults, which assume a fifth of bad clients.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

import fedframe
from fedframe.errors import DivergedError
from fedframe.util.files import read_json, write_json

COMMON: dict[str, Any] = {
    "data": "digits",
    "model": "mlp:64",
    "clients": 20,
    "rounds": 15,
    "eval_every": 0,
    "personal": False,
    "workers": 1,
}
PARTITIONS = ("iid", "dirichlet:0.3")
SHARES = (0.1, 0.2)
SEEDS = (0, 1, 2)
ATTACKS = ("sign_flip", "scale", "label_flip", "alie", "ipm", "backdoor")
DEFENCES = (
    "fedavg",
    "norm_bound",
    "median",
    "trimmed_mean",
    "krum",
    "multi_krum",
    "rfa",
    "centred_clipping",
    "fltrust",
    "median+bucketing",
    "krum+bucketing",
    "trimmed_mean+nnm",
    "centred_clipping+nnm",
)
Cell = tuple[str, str, float, str, int]  # defence, attack, share, partition, seed


def cells() -> list[Cell]:
    """All runs, seed by seed, so that a table that is cut short has all rows; without attackers one kind will do."""
    grid = [
        (defence, attack, share, partition, seed)
        for seed, partition, (attack, share), defence in itertools.product(
            SEEDS, PARTITIONS, [("backdoor", 0.0), *itertools.product(ATTACKS, SHARES)], DEFENCES
        )
    ]
    return sorted(grid, key=lambda cell: cell[4])


def path_of(out: Path, cell: Cell) -> Path:
    """Where the figures of a run are kept."""
    defence, attack, share, partition, seed = cell
    return out / partition.replace(":", "-") / f"{attack}-{share:g}" / defence / f"{seed}.json"


def run_cell(out: Path, cell: Cell) -> None:
    """Run one, unless its figures are there; a run that ends for lack of usable updates counts as chance."""
    torch.set_num_threads(1)
    defence, attack, share, partition, seed = cell
    path = path_of(out, cell)
    if path.exists():
        return
    shutil.rmtree(path.with_suffix(""), ignore_errors=True)  # of one that was killed
    settings = {**COMMON, "partition": partition, "seed": seed, "set": {"attack": {"kind": attack, "share": share}}}
    try:
        done = fedframe.run(f"{defence}+attack", out=path.with_suffix(""), progress=False, **settings)
    except DivergedError:
        write_json(path, {"generic": 0.1, "success": None, "diverged": True})
        return
    last = done.history[-1]
    write_json(path, {"generic": last["generic"], "success": last.get("attack/success"), "diverged": False})


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean and standard deviation."""
    return {"mean": statistics.fmean(values), "deviation": statistics.stdev(values) if len(values) > 1 else 0.0}


def gather(out: Path) -> list[dict[str, Any]]:
    """A row for every defence, attack, share and partition that has been run at all."""
    rows = []
    for key, group in itertools.groupby(sorted(cells()), key=lambda cell: cell[:4]):
        found = [read_json(path_of(out, cell)) for cell in group if path_of(out, cell).exists()]
        if not found:
            continue
        row: dict[str, Any] = dict(zip(("defence", "attack", "share", "partition"), key, strict=True))
        row |= {"seeds": len(found), "generic": spread([each["generic"] for each in found])}
        row["diverged"] = sum(each["diverged"] for each in found)
        success = [each["success"] for each in found if each["success"] is not None]
        rows.append(row | ({"success": spread(success)} if success else {}))
    return rows


def table(rows: Sequence[dict[str, Any]], partition: str) -> str:
    """Markdown: a row for every defence, accuracy under 10 / 20 % of attackers, and the backdoor's success."""
    known = {(row["defence"], row["attack"], row["share"]): row for row in rows if row["partition"] == partition}

    def shown(defence: str, attack: str, share: float, figure: str = "generic") -> str:
        row = known.get((defence, attack, share), {})
        return f"{row[figure]['mean']:.2f}".lstrip("0") if figure in row else ""

    heads = [*ATTACKS, "backdoor's success"]
    lines = ["| defence | no attack | " + " | ".join(heads) + " |", "|---" * (len(heads) + 2) + "|"]
    for defence in DEFENCES:
        pairs = [" / ".join(shown(defence, attack, share) for share in SHARES) for attack in ATTACKS]
        success = " / ".join(shown(defence, "backdoor", share, "success") for share in (0.0, *SHARES))
        lines.append(f"| `{defence}` | {shown(defence, 'backdoor', 0.0)} | {' | '.join(pairs)} | {success} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then write the figures and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/poison"))
    parser.add_argument("--write", type=Path)
    parser.add_argument("--lanes", type=int, default=1, help="runs side by side")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many seeds")
    parser.add_argument("--only-gather", action="store_true", help="run nothing")
    given = parser.parse_args()
    if not given.only_gather:
        wanted = [cell for cell in cells() if cell[4] < given.seeds]
        with ProcessPoolExecutor(given.lanes) as pool:
            list(pool.map(partial(run_cell, given.out), wanted))
    rows = gather(given.out)
    if given.write:
        write_json(given.write, {"settings": COMMON, "rows": rows})
    for partition in PARTITIONS:
        print(f"\n{partition}\n\n{table(rows, partition)}")


if __name__ == "__main__":
    main()
