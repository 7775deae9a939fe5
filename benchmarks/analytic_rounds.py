"""What rounds add to a closed form: `python -m benchmarks.analytic_rounds --data digits --model cnn --rounds 20`.

A method trains once. After 0, 5, 10, 20, 40 and 100 rounds the shared model is scored as the method leaves it (with
its own server stage, if it has one), and with the closed form on its features, as they are and behind a random layer:
rounds are the same with and without `+analytic`, so that one training serves all. Beside them stands `analytic` on the
samples themselves. Every look goes into docs/results/analytic-rounds.json; what is complete there is not done again.

All methods have the same schedule, batch, momentum and decay (`SCHEDULE`, not their recipes'), and each the best rate
of a grid: on training samples that are held out, as the method leaves the model, after a quarter of the rounds. Test
samples choose nothing. A best rate at the end of the grid moves the grid on, at most twice.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.origin import command_line, origin
from fedframe.core.job import Job
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.errors import FedframeError
from fedframe.jobs.build import JobMaker
from fedframe.jobs.gather import gather
from fedframe.methods.recipes import make_method
from fedframe.methods.tuning import RATE_FACTOR
from fedframe.util.files import read_json, write_json

RESULTS = Path("docs/results/analytic-rounds.json")
AFTER = (0, 5, 10, 20, 40, 100)
METHODS = ("fedavg", "fedetf", "spherefed")
# The same for every method: a recipe's own schedule or batch would be what a difference between methods is made of.
SCHEDULE: Mapping[str, Any] = {"batch": 32, "momentum": 0.0, "weight_decay": 0.0, "lr_schedule": "constant"}
RATES, STEP, MORE = (0.03, 0.1, 0.3), 10**0.5, 2  # the grid; how it goes on at an end, and how often
HELD_OUT = 0.2  # of what each client trains on, while rates are chosen
CLOSED: Mapping[str, dict[str, Any]] = {
    "closed form": {},
    "closed form, 1,024 random units": {"width": 1024},
    "closed form, 1,024 random units, map=data": {"width": 1024, "map": "data"},
}


def make(given: Mapping[str, Any], method: str, own: Mapping[str, Any], folder: Path) -> Job:
    """A job of this benchmark."""
    settings = gather({**given, "method": method, "set": {"analytic": dict(own)} if "analytic" in method else {}}, None)
    return JobMaker(settings, None, None).make(folder)


def score_after(job: Job, trained: Server | None) -> float:
    """Accuracy of the shared model behind the method's server stage, from weights that another server has trained."""
    server = Server(job, InlineEngine(job), lambda _: None)
    if trained is not None:
        server.model, server.round = trained.model.clone(), trained.round
        server.fixed_overrides = dict(trained.fixed_overrides)
    part = job.method.optional_slot("server_stage")
    for number in range(job.stages):
        assert part is not None
        server.stage, shapes = number, job.expected("statistics", number)
        part.server_stage(server, server.ask_everyone("statistics", shapes, lambda *_: None))
    found = server.engine.evaluation.after_round(server).generic
    assert found is not None
    return found


def score_trained(given: Mapping[str, Any], method: str, folder: Path) -> float:
    """Accuracy of the shared model after the rounds, as the method leaves it; 0 if it has diverged."""
    job = make(given, method, {}, folder)
    server = Server(job, InlineEngine(job), lambda _: None)
    try:
        server.train(lambda _: None, lambda *_: None)
    except FedframeError as error:
        print(f"{method}, rate {given['lr']:.3g}: {error}", flush=True)
        return 0.0
    found = score_after(job, server)
    return found if math.isfinite(found) else 0.0


def choose_rate(given: Mapping[str, Any], method: str) -> tuple[float, dict[str, float]]:
    """The rate with the best accuracy on training samples that are held out, and that of all that were tried."""
    factor = math.prod(RATE_FACTOR.get(part.name, 1.0) for part in make_method(method, {}).parts)
    tried = dict[float, float]()
    short = {**given, "rounds": max(1, given["rounds"] // 4), "validate_share": HELD_OUT}

    def best(rates: tuple[float, ...]) -> float:
        for rate in rates:
            with tempfile.TemporaryDirectory() as name:
                tried[rate] = score_trained({**short, "lr": rate}, method, Path(name))
        return max(tried, key=tried.__getitem__)

    found = best(tuple(rate * factor for rate in RATES))
    for _ in range(MORE):
        if found == max(tried):
            found = best((found * STEP,))
        elif found == min(tried):
            found = best((found / STEP,))
    return found, {f"{rate:.3g}": score for rate, score in sorted(tried.items())}


def measure(given: Mapping[str, Any], method: str, folder: Path, keep: Callable[[list[dict[str, Any]]], None]) -> None:
    """A line for every number of rounds, each kept when it is there; seconds are those of the rounds alone."""
    plain = make(given, method, {}, folder / "plain")
    closed = {name: make(given, f"{method}+analytic", own, folder / name) for name, own in CLOSED.items()}
    server, found = Server(plain, InlineEngine(plain), lambda _: None), list[dict[str, Any]]()
    looking, began = 0.0, time.process_time()

    def look(rounds: int) -> None:
        nonlocal looking
        start = time.process_time()
        trained = round(start - began - looking, 1)
        scores = {name: score_after(job, server) for name, job in closed.items()}
        scores["as it is"] = score_after(plain, server)
        found.append({"method": method, "rounds": rounds, "cpu_seconds": trained, "generic": scores})
        print(json.dumps(found[-1]), flush=True)
        keep(found)
        looking += time.process_time() - start

    look(0)
    server.train(lambda record: look(record.round) if record.round in AFTER else None, lambda *_: None)


def read_table(path: Path) -> dict[str, Any]:
    """What is there so far."""
    empty: dict[str, Any] = {"about": "python -m benchmarks.analytic_rounds", "runs": []}
    return dict(read_json(path)) if path.exists() else empty


def is_complete(run: Mapping[str, Any]) -> bool:
    """Whether a run got to its last look."""
    looks = [0, *(rounds for rounds in AFTER if 0 < rounds <= run["settings"]["rounds"])]
    return run["method"] == "analytic" or [line["rounds"] for line in run["lines"]] == looks


def put(path: Path, run: Mapping[str, Any]) -> None:
    """Write a run into the table, in the place of what was there of it: another process may have written meanwhile."""
    table = read_table(path)
    others = [each for each in table["runs"] if (each["method"], each["settings"]) != (run["method"], run["settings"])]
    write_json(path, {**table, "runs": [*others, run]})


def put_lines(path: Path, run: Mapping[str, Any], lines: list[dict[str, Any]]) -> None:
    """Write what a run has found so far."""
    put(path, {**run, "lines": lines})


def show(table: Mapping[str, Any]) -> Iterator[str]:
    """A table as Markdown for every set of settings but the seed: means over seeds of what is complete."""
    groups = dict[str, list[dict[str, Any]]]()
    for run in filter(is_complete, table["runs"]):
        shared = {name: value for name, value in run["settings"].items() if name != "seed"}
        groups.setdefault(json.dumps(shared), []).append(run)
    for settings, runs in groups.items():
        looks = sorted({line["rounds"] for run in runs for line in run["lines"]})
        yield from (
            "",
            settings,
            "",
            f"| method | rate | | {' | '.join(map(str, looks))} |",
            "|---" * (len(looks) + 3) + "|",
        )
        for method in dict.fromkeys(run["method"] for run in runs):
            seeds = [run for run in runs if run["method"] == method]
            rates = ", ".join(f"{run['lr']:.3g}" for run in seeds if "lr" in run)
            for kind in seeds[0]["lines"][0]["generic"]:
                found = {
                    look: [line["generic"][kind] for run in seeds for line in run["lines"] if line["rounds"] == look]
                    for look in looks
                }
                cells = [f"{fmean(scores):.3f} ({len(scores)})" if scores else "" for scores in found.values()]
                yield f"| {method} | {rates} | {kind} | {' | '.join(cells)} |"


def main() -> None:
    """All methods that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--data-share", type=float, default=1.0)
    parser.add_argument("--partition", default="dirichlet:0.1")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--show", action="store_true", help="run nothing, print what is there as tables")
    asked = vars(parser.parse_args())
    if asked.pop("show"):
        print("\n".join(show(read_table(asked["results"]))))
        return
    results, methods = asked.pop("results"), asked.pop("methods").split(",")
    given = {**asked, **SCHEDULE, "eval_every": 0, "personal": False, "workers": 1}
    shown = {name: value for name, value in asked.items() if name != "data_dir"} | dict(SCHEDULE)
    for method in ("analytic", *methods):
        known = [each for each in read_table(results)["runs"] if each["settings"] == shown]
        if any(each["method"] == method and is_complete(each) for each in known):
            continue
        run = {"method": method, "command": command_line(), **origin(), "settings": shown}
        with tempfile.TemporaryDirectory() as name:
            if method == "analytic":
                job = make({**given, "rounds": 0, "model": "raw"}, method, {"keep_sums": False}, Path(name))
                lines = [{"method": method, "rounds": 0, "generic": {"closed form": score_after(job, None)}}]
                put_lines(results, run, lines)
            else:
                rate, tried = choose_rate(given, method)
                print(f"{method}: rate {rate:.3g} of {tried}", flush=True)
                run |= {"lr": rate, "accuracy_held_out": tried}
                measure({**given, "lr": rate}, method, Path(name), partial(put_lines, results, run))


if __name__ == "__main__":
    main()
