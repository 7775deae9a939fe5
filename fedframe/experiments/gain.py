"""What does a client gain by joining? Every client alone, with the shared model and with its own, side by side.

*Alone* is the recipe `local`: the same clients, split, net and seed, the same rounds, epochs and draws of clients, and
as many epochs after them as the run's client stage takes; nothing is shared. It is run once and kept in the run's
folder. The result is kept as `gain.json`, which the report shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedframe.api import resume, run
from fedframe.core.measures import Z, metric_name
from fedframe.errors import DataError, SettingError
from fedframe.jobs.build import Net
from fedframe.methods.recipes import make_method
from fedframe.runs.folder import CLIENT_SCORES, RunFolder
from fedframe.runs.round_files import SUMMARY
from fedframe.settings import FROM_PYTHON, REMOTE_DATA, Settings
from fedframe.util.allowed_code import check_named
from fedframe.util.files import write_json
from fedframe.util.text import interval, percent, plural

GAIN, ALONE = "gain.json", "alone"
MODELS = ("alone", "shared", "personal")
KEYS = {"shared": "client", "personal": "personal"}  # what client_scores.json calls them
NOT_ALONE = ("privacy_clip", "privacy_noise", "privacy_at", "engine", "secure", "min_clients", "patience", "nodes")
VERDICTS = {1: "gains", 0: "no clear difference", -1: "loses"}


def gain(folder: str | Path, *, data: object = None, model: Net | None = None, progress: bool = True) -> dict[str, Any]:
    """Compare, client by client, what training together gave with training alone; writes and returns `gain.json`.

    Data and a net that came from Python are given again.
    """
    path = RunFolder.open(folder).path
    if not (path / SUMMARY).exists():
        raise DataError(f"{folder} is not finished; go on with 'fedframe resume {folder}' first.")
    settings = RunFolder(path).settings()
    table = RunFolder(path).read(CLIENT_SCORES)
    if not any(value is not None for key in KEYS.values() for value in table[key]):
        raise DataError(f"No client of {folder} has test data of its own, so that there is nothing to compare.")
    alone = None
    if settings.data != REMOTE_DATA:
        train_alone(path, settings, data, model, progress)
        alone = RunFolder(path / ALONE).read(CLIENT_SCORES)
    rows = [compare_client(table, alone, place) for place in range(len(table["clients"]))]
    content = {"metric": settings.score_metric, "clients": rows, **overall(rows)}
    write_json(path / GAIN, content)
    return content


def train_alone(path: Path, settings: Settings, data: object, model: Net | None, progress: bool) -> None:
    """Run every client alone, unless that was done; what was cut off goes on."""
    folder = path / ALONE
    if (folder / "config.yaml").exists():
        resume(folder, data=data, model=model, progress=progress)
        return
    check_named(settings.method, settings.model)  # what `run` is given counts as typed, and this was read
    for name, given in (("data", data), ("model", model)):
        if getattr(settings, name) == FROM_PYTHON and given is None:
            raise SettingError(f"The {name} of {path} came from Python; give it again there: gain(folder, {name}=...).")
    stage = make_method(settings.method, settings.set).slot("client_stage")
    values = settings.model_dump(exclude={"method", "set", "data", "model", "log", "measure", *NOT_ALONE})
    values |= {"personal": True, "save_personal": False, "set": {"fine_tune": {"epochs": getattr(stage, "epochs", 0)}}}
    run(
        "local",
        data=settings.data if data is None else data,
        model=settings.model if model is None else model,
        out=folder,
        progress=progress,
        **values,
    )


def compare_client(table: dict[str, Any], alone: dict[str, Any] | None, place: int) -> dict[str, Any]:
    """One client's row: its scores, and what joining gives over training alone."""
    name = table["clients"][place]
    row: dict[str, Any] = {"client": name, "test_samples": table["test_samples"][place], "alone": None}
    if alone is not None and name in alone["clients"]:
        row["alone"] = score_at(alone, "personal", alone["clients"].index(name))
    row |= {kind: score_at(table, key, place) for kind, key in KEYS.items()}
    joined = row["personal"] or row["shared"]
    row["joined"] = "personal" if row["personal"] else "shared" if row["shared"] else None
    row["gain"] = difference(joined, row["alone"]) if joined and row["alone"] else None
    row["verdict"] = VERDICTS[direction(row["gain"])] if row["gain"] else None
    return row


def score_at(table: dict[str, Any], key: str, place: int) -> dict[str, float] | None:
    """A score with its interval."""
    if table[key][place] is None:
        return None
    value = float(table[key][place])
    low, high = (table.get(f"{key}_{end}", [None] * (place + 1))[place] for end in ("low", "high"))
    return {"value": value, "low": value if low is None else low, "high": value if high is None else high}


def difference(joined: dict[str, float], alone: dict[str, float]) -> dict[str, float]:
    """Joined minus alone with an interval as if the two had been tested on different samples, which is wider."""
    value = joined["value"] - alone["value"]
    return interval_of(value, math.hypot(standard_error(joined), standard_error(alone)))


def standard_error(score: dict[str, float]) -> float:
    """The error that an interval stands for; ends that are cut at 0 or 1 say less than the other one."""
    return max(score["high"] - score["value"], score["value"] - score["low"]) / Z


def interval_of(value: float, error: float) -> dict[str, float]:
    """A difference with its 95 % interval."""
    return {"value": value, "low": value - Z * error, "high": value + Z * error}


def direction(gained: dict[str, float]) -> int:
    """Whether a difference is clear: 1 up, -1 down, 0 neither."""
    return 1 if gained["low"] > 0 else -1 if gained["high"] < 0 else 0


def overall(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How many gain and lose, and the mean over clients."""
    known = [row["gain"] for row in rows if row["gain"]]
    if not known:
        return {"mean": None, "counts": {}}
    error = math.sqrt(sum(standard_error(each) ** 2 for each in known)) / len(known)
    counts = {word: sum(direction(each) == way for each in known) for way, word in VERDICTS.items()}
    return {"mean": interval_of(sum(each["value"] for each in known) / len(known), error), "counts": counts}


# -- in words ----------------------------------------------------------------------------------------------------------
def lines_of(content: dict[str, Any], most: int = 50) -> list[str]:
    """The table and its verdict, for a terminal."""
    rows = content["clients"]
    width = max(6, *(len(str(row["client"])) for row in rows))
    heads = [f"{'client':{width}}", f"{'tests':>6}", *(f"{kind:>20}" for kind in MODELS), f"{'by joining':>22}", ""]
    lines = ["  ".join(heads).rstrip()]
    for row in sorted(rows, key=lambda row: -row["gain"]["value"] if row["gain"] else math.inf)[:most]:
        cells = [score_text(row[kind]) for kind in MODELS]
        gained = points(row["gain"]) if row["gain"] else ""
        first = f"{row['client']!s:{width}}  {row['test_samples']:>6,}  " + "  ".join(f"{cell:>20}" for cell in cells)
        lines.append(f"{first}  {gained:>22}  {row['verdict'] or ''}".rstrip())
    if len(rows) > most:
        lines.append(f"... and {len(rows) - most:,} more in {GAIN}")
    return [*lines, "", verdict(content)]


def score_text(score: dict[str, float] | None) -> str:
    """A score with its interval, short."""
    return "" if score is None else f"{percent(score['value'])} {interval(score)}"


def points(gained: dict[str, float]) -> str:
    """A difference in points."""
    return f"{100 * gained['value']:+.1f} [{100 * gained['low']:+.1f}, {100 * gained['high']:+.1f}]"


def verdict(content: dict[str, Any]) -> str:
    """Who gains and who loses, in a sentence."""
    if content["mean"] is None:
        return (
            "What clients would have alone is not known here: their data stay at the nodes. Only the shared and the "
            "own models are shown."
        )
    counts, total = content["counts"], sum(content["counts"].values())
    text = (
        f"By joining, {counts['gains']} of {plural(total, 'client')} gain clearly, {counts['loses']} "
        f"{'loses' if counts['loses'] == 1 else 'lose'}, for {counts['no clear difference']} there is no clear "
        f"difference; mean {points(content['mean'])} points of {metric_name(content['metric'])}."
    )
    if counts["no clear difference"]:
        text += " With few test samples only large differences are clear."
    return text
