"""Lines over rounds for a script to draw: mean and interval over the runs of a method, thinned out if need be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import fmean
from typing import Any

from fedframe.metrics.statistics import estimate
from fedframe.report.page.runs import Run
from fedframe.report.page.section import Data, rounded

MOST_POINTS = 400  # of a line: more than a screen has columns to tell apart
Line = dict[str, Any]


def series(
    label: str, runs: Sequence[Run], value: Callable[[Line], float | None], most: int | None = MOST_POINTS
) -> Data | None:
    """A line of [round, seconds, megabytes, mean, low, high] per evaluated round; None if there is nothing in it."""
    clocks = [clock(run) for run in runs]
    seen: dict[int, list[tuple[float, float, float]]] = {}
    for run, times in zip(runs, clocks, strict=True):
        for line, (seconds, megabytes) in zip(run.metrics, times, strict=True):
            number = value(line)
            if isinstance(number, int | float) and number == number:  # NaN differs from itself
                seen.setdefault(int(line["round"]), []).append((seconds, megabytes, float(number)))
    rounds = thin(sorted(seen), most)
    points = []
    for round in rounds:
        when, sent, numbers = zip(*seen[round], strict=True)
        mean, low, high = estimate(numbers).interval
        place = [round, rounded(fmean(when), 4), rounded(fmean(sent), 4)]
        points.append([*place, rounded(mean), rounded(low), rounded(high)])
    return {"label": label, "points": points, "runs": len(runs)} if points else None


def clock(run: Run) -> list[tuple[float, float]]:
    """Seconds of training and megabytes sent since the start, after each round."""
    seconds = accumulate(float(line.get("seconds") or 0) for line in run.metrics)
    sent = accumulate(float(line.get("bytes_up") or 0) + float(line.get("bytes_down") or 0) for line in run.metrics)
    return [(second, count / 1e6) for second, count in zip(seconds, sent, strict=True)]


def thin(rounds: list[int], most: int | None) -> list[int]:
    """At most so many rounds, evenly, the first and the last among them."""
    if most is None or len(rounds) <= most:
        return rounds
    step = (len(rounds) - 1) / (most - 1)
    return [rounds[round(i * step)] for i in range(most)]


def panel(key: str, label: str, lines: Sequence[Data | None], *, share: bool = False, read: str = "") -> Data | None:
    """One picture of lines that have an axis in common; None without a line."""
    drawn = [line for line in lines if line is not None]
    return {"key": key, "label": label, "series": drawn, "share": share, "read": read} if drawn else None
