"""What rounds add to a closed form: `python -m benchmarks.analytic_rounds --data digits --model cnn --rounds 20`.

A method trains once. After 0, 5, 10 and 20 rounds the shared model is scored as the method leaves it (with its own
server stage, if it has one), and with the closed form on its features, as they are and behind a random layer: rounds
are the same with and without `+analytic`, so that one training serves all. Beside them stands `analytic` on the samples
themselves. Each method's results go into docs/results/analytic-rounds.json when they are there; what is in it is not
done again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedframe.core.job import Job
from fedframe.core.server import Server
from fedframe.engines.inline import InlineEngine
from fedframe.jobs.build import JobMaker
from fedframe.jobs.gather import gather
from fedframe.util.files import read_json, write_json

RESULTS = Path("docs/results/analytic-rounds.json")
AFTER = (0, 5, 10, 20, 40, 100)
METHODS = ("fedavg", "fedetf", "spherefed")
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


def measure(given: Mapping[str, Any], method: str, folder: Path) -> list[dict[str, Any]]:
    """A line for every number of rounds."""
    plain = make(given, method, {}, folder / "plain")
    closed = {name: make(given, f"{method}+analytic", own, folder / name) for name, own in CLOSED.items()}
    server, found, began = (
        Server(plain, InlineEngine(plain), lambda _: None),
        list[dict[str, Any]](),
        time.process_time(),
    )

    def look(rounds: int) -> None:
        trained = round(time.process_time() - began, 1)
        scores = {name: score_after(job, server) for name, job in closed.items()}
        scores["as it is"] = score_after(plain, server)
        found.append({"method": method, "rounds": rounds, "cpu_seconds": trained, "generic": scores})
        print(json.dumps(found[-1]), flush=True)

    look(0)
    server.train(lambda record: look(record.round) if record.round in AFTER else None, lambda *_: None)
    return found


def read_table(path: Path) -> dict[str, Any]:
    """What is there so far."""
    empty: dict[str, Any] = {"about": "python -m benchmarks.analytic_rounds", "runs": []}
    return dict(read_json(path)) if path.exists() else empty


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
    asked = vars(parser.parse_args())
    results, methods = asked.pop("results"), asked.pop("methods").split(",")
    shown = {name: value for name, value in asked.items() if name != "data_dir"}
    given = {**asked, "eval_every": 0, "personal": False, "workers": 1}
    for method in ("analytic", *methods):
        if any(each["settings"] == shown and each["method"] == method for each in read_table(results)["runs"]):
            continue
        with tempfile.TemporaryDirectory() as name:
            if method == "analytic":
                job = make({**given, "rounds": 0, "model": "raw"}, method, {"keep_sums": False}, Path(name))
                lines = [{"method": method, "rounds": 0, "generic": {"closed form": score_after(job, None)}}]
            else:
                lines = measure(given, method, Path(name))
        table = read_table(results)  # again: another process may have added to it
        table["runs"].append({"method": method, "settings": shown, "lines": lines})
        write_json(results, table)


if __name__ == "__main__":
    main()
