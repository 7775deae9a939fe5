"""What a client gains by joining, as a table: alone, shared and personal side by side, and who gains.

Where predictions of both models are at hand, differences are those of pairs (`metrics/paired.py`): both models are
tested on the same samples. Where only scores with intervals are, they count as if samples were others, which is wider.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedframe.core.job import Job
from fedframe.core.measures import Z, is_share, metric_name, sign_of
from fedframe.core.node_gain import NodeGain
from fedframe.core.target_measures import Single
from fedframe.metrics.paired import difference
from fedframe.util.files import write_json
from fedframe.util.text import change, figure, interval, plural
from fedframe.util.text import points as counted

GAIN, ALONE = "gain.json", "alone"
MODELS = ("alone", "shared", "personal")
KEYS = {"shared": "client", "personal": "personal"}  # what client_scores.json calls them
VERDICTS = {1: "gains", 0: "no clear difference", -1: "loses"}
Score = dict[str, float]
ByModel = Mapping[str, Mapping[Any, Single]]  # predictions for the own test data: by model, then by client


def write_gain(folder: Path, metric: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Keep the table with its verdict as `gain.json`."""
    content = {"metric": metric, "clients": list(rows), **overall(rows)}
    write_json(folder / GAIN, content)
    return content


def told_rows(
    table: dict[str, Any], names: Sequence[str], told: Mapping[int, NodeGain], metric: str = "accuracy"
) -> list[dict[str, Any]]:
    """A federation's rows: what nodes have reported about themselves, beside the scores that are known for all."""
    said = {names[client]: each for client, each in told.items()}
    table, rows = with_everyone(table, names), []
    for place, name in enumerate(table["clients"]):
        alone, gained = said.get(name, (None, None))
        row = compare_client(table, alone, place, metric)
        rows.append(with_difference(row, gained, paired=True) if gained else row)
    return rows


def with_everyone(table: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The scores of clients with a row for everybody: where they are added up securely, nobody's are known."""
    if table["clients"]:
        return table
    unknown = [None] * len(names)
    return {"clients": list(names), "test_samples": unknown, **dict.fromkeys(KEYS.values(), unknown)}


# -- one client --------------------------------------------------------------------------------------------------------
def compare_client(table: dict[str, Any], alone: Score | None, place: int, metric: str = "accuracy") -> dict[str, Any]:
    """One client's row from scores with intervals; a gain is positive where the joined model is better."""
    row: dict[str, Any] = {"client": table["clients"][place], "test_samples": table["test_samples"][place]}
    row |= {"alone": alone, **{kind: score_at(table, key, place) for kind, key in KEYS.items()}}
    row["joined"] = "personal" if row["personal"] else "shared" if row["shared"] else None
    joined = row[row["joined"]] if row["joined"] else None
    return with_difference(row, apart(joined, alone, sign_of(metric)) if joined and alone else None, paired=False)


def with_pairs(row: dict[str, Any], job: Job, found: ByModel, client: Any) -> dict[str, Any]:
    """The row with the difference of pairs, where both models' predictions are at hand."""
    joined, alone = found.get(row["joined"] or "", {}).get(client), found["alone"].get(client)
    if row["gain"] is None or joined is None or alone is None:
        return row
    settings = job.settings
    positive = job.positive if job.target is None else 1
    both = difference(joined, alone, settings.score_metric, positive, settings.metric_at)
    return row if both is None else with_difference(row, both.plain(), paired=True)


def with_difference(row: dict[str, Any], gained: Score | None, paired: bool) -> dict[str, Any]:
    """The row with what joining gives, and what that means."""
    row = {**row, "gain": gained, "verdict": VERDICTS[direction(gained)] if gained else None}
    return {**row, "paired": paired} if gained else row


def score_at(table: dict[str, Any], key: str, place: int) -> Score | None:
    """A score with its interval."""
    if table[key][place] is None:
        return None
    value = float(table[key][place])
    low, high = (table.get(f"{key}_{end}", [None] * (place + 1))[place] for end in ("low", "high"))
    return {"value": value, "low": value if low is None else low, "high": value if high is None else high}


def apart(joined: Score, alone: Score, sign: int = 1) -> Score:
    """How much better joined is than alone, as if the two had been tested on different samples."""
    return interval_of(
        sign * (joined["value"] - alone["value"]), math.hypot(standard_error(joined), standard_error(alone))
    )


def standard_error(score: Score) -> float:
    """The error that an interval stands for; ends that are cut at 0 or 1 say less than the other one."""
    return score.get("error") or max(score["high"] - score["value"], score["value"] - score["low"]) / Z


def interval_of(value: float, error: float) -> Score:
    """A difference with its 95 % interval."""
    return {"value": value, "low": value - Z * error, "high": value + Z * error, "error": error}


def direction(gained: Score) -> int:
    """Whether a difference is clear: 1 up, -1 down, 0 neither."""
    return 1 if gained["low"] > 0 else -1 if gained["high"] < 0 else 0


# -- all clients -------------------------------------------------------------------------------------------------------
def overall(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How many gain and lose, and the mean over clients."""
    known = [row["gain"] for row in rows if row["gain"]]
    if not known:
        return {"mean": None, "counts": {}}
    error = math.sqrt(sum(standard_error(each) ** 2 for each in known)) / len(known)
    if len(known) == 1:  # its own interval, which need not be even around it
        mean = {**known[0], "error": error}
    else:
        mean = interval_of(sum(each["value"] for each in known) / len(known), error)
    counts = {word: sum(direction(each) == way for each in known) for way, word in VERDICTS.items()}
    return {"mean": mean, "counts": counts}


# -- in words ----------------------------------------------------------------------------------------------------------
def lines_of(content: dict[str, Any], most: int = 50) -> list[str]:
    """The table and its verdict, for a terminal."""
    rows, share = content["clients"], is_share(content["metric"])
    width = max(6, *(len(str(row["client"])) for row in rows))
    heads = [f"{'client':{width}}", f"{'tests':>6}", *(f"{kind:>20}" for kind in MODELS), f"{'by joining':>22}", ""]
    lines = ["  ".join(heads).rstrip()]
    for row in sorted(rows, key=lambda row: -row["gain"]["value"] if row["gain"] else math.inf)[:most]:
        cells = [score_text(row[kind], share) for kind in MODELS]
        gained = points(row["gain"], share) if row["gain"] else ""
        tests = "" if row["test_samples"] is None else f"{row['test_samples']:,}"
        first = f"{row['client']!s:{width}}  {tests:>6}  " + "  ".join(f"{cell:>20}" for cell in cells)
        lines.append(f"{first}  {gained:>22}  {row['verdict'] or ''}".rstrip())
    if len(rows) > most:
        lines.append(f"... and {len(rows) - most:,} more in {GAIN}")
    return [*lines, "", verdict(content)]


def score_text(score: Score | None, share: bool = True) -> str:
    """A score with its interval, short."""
    return "" if score is None else f"{figure(score['value'], share)} {interval(score, share)}"


def points(gained: Score, share: bool = True) -> str:
    """A difference in points, or in the target's units."""
    value, low, high = (change(gained[end], share) for end in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def verdict(content: dict[str, Any], who: str = "client") -> str:
    """Who gains and who loses, in a sentence; `who` says what clients are called."""
    if content["mean"] is None:
        return (
            f"What {who}s would have alone is not known here: their data stay at the nodes. A node that joins with "
            "--tell-gain trains alone first and tells the difference; 'fedframe gain' on its own run folder shows it "
            "there."
        )
    counts, total = content["counts"], sum(content["counts"].values())
    silent, metric = len(content["clients"]) - total, content["metric"]
    share = is_share(metric)
    unclear = counts["no clear difference"]
    mean = f"{points(content['mean'], share)}{counted(share)} of {metric_name(metric)}"
    joining = (
        f"none of {plural(total, who)} gains or loses clearly"
        if unclear == total > 1
        else f"{counts['gains']} of {plural(total, who)} {'gains' if total == 1 else 'gain'} clearly, "
        f"{counts['loses']} {'loses' if counts['loses'] == 1 else 'lose'}, for {unclear} there is no clear difference"
    )
    text = f"By joining, {joining}; mean {mean}."
    if len(content["clients"]) == total == 1:
        one = content["clients"][0]
        name = f"{who} {one['client']}" if str(one["client"]).isdecimal() else one["client"]
        clear = "" if unclear else "clearly "
        text = f"By joining, {name} {clear}{'loses' if counts['loses'] else 'gains'} {mean}"
        text += ", which is no clear difference." if unclear else "."
    if sign_of(metric) < 0:
        text += " Gains are errors that became smaller."
    if unclear:
        text += " With few test samples only large differences are clear."
    if silent:
        text += f" {plural(silent, who)} {'has' if silent == 1 else 'have'} not said what they would have alone."
    return text
