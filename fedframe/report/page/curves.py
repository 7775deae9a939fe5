"""Scores, loss and measures over rounds: mean and interval over the runs of a method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from statistics import fmean
from typing import Any

from fedframe.analysis.explanations import READINGS
from fedframe.core.measures import is_share, metric_name
from fedframe.metrics.statistics import estimate
from fedframe.report.page.runs import Run, Subject
from fedframe.report.page.scores import SCORES
from fedframe.report.page.scores import names as score_names
from fedframe.report.page.section import Data, Section, rounded
from fedframe.util.text import figure

MOST_POINTS = 400  # of a line: more than a screen can show
Line = dict[str, Any]


def series(
    label: str, runs: Sequence[Run], value: Callable[[Line], float | None], most: int | None = MOST_POINTS
) -> Data | None:
    """A line of [round, seconds, megabytes, mean, low, high] per evaluated round; None if it has no points."""
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
    """At most `most` of the rounds, evenly spaced, including the first and the last."""
    if most is None or len(rounds) <= most:
        return rounds
    step = (len(rounds) - 1) / (most - 1)
    return [rounds[round(i * step)] for i in range(most)]


def panel(key: str, label: str, lines: Sequence[Data | None], *, share: bool = False, read: str = "") -> Data | None:
    """A panel of lines with a common axis; None without a line."""
    drawn = [line for line in lines if line is not None]
    return {"key": key, "label": label, "series": drawn, "share": share, "read": read} if drawn else None


READ = "Each line is a model's score after every evaluated round"
BANDS = (
    "; a band is the 95 % confidence interval of the mean over seeds: where bands lie apart, the difference is "
    "unlikely to be luck"
)
# Numbers of a round that have their own place on the page, or say nothing about learning.
KNOWN = {"round", "lr", "clients", "dropped", "seconds", "bytes_up", "bytes_down", "loss", "generic_loss", "per_class"}
KNOWN |= {f"{score}{kind}" for score in SCORES for kind in ("", "_weighted", "_count")}
LAYER = "cka/"  # prefix: linear CKA between clients, a number per layer
ELSEWHERE = ("nc",)  # prefixes: collapse has its own section


def section(subject: Subject) -> Section:
    """Curves of one method's scores, or of one score of several methods."""
    panels = [one for one in (*accuracy(subject), *losses(subject), *extras(subject)) if one is not None]
    if not panels:
        return Section("curves", "Learning curves", f"{READ}.", missing="No round is finished yet.")
    return Section("curves", "Learning curves", read_text(panels), {"panels": panels}, alt_text(panels[0]))


def read_text(panels: list[Data]) -> str:
    """How to read the lines; bands only where there are any."""
    banded = any(point[4] is not None for one in panels for line in one["series"] for point in line["points"])
    return f"{READ}{BANDS if banded else ''}."


def accuracy(
    subject: Subject,
    names: Sequence[str] | None = None,
    labels: Mapping[str, str] | None = None,
    most: int | None = MOST_POINTS,
) -> list[Data | None]:
    """One panel with all scores of a single method; otherwise one panel per score.

    `names` are those of the methods, `labels` those of the scores of a single one, `most` bounds the points of a line.
    """
    share = is_share(subject.groups[0].first.metric)
    labels = labels or score_names(subject.groups[0].first)
    if subject.single:
        runs = subject.groups[0].runs
        lines = [series(labels[score], runs, reader(score), most) for score in SCORES]
        return [panel("accuracy", metric_name(subject.groups[0].first.metric), lines, share=share)]
    return [panel(score, labels[score], by_method(subject, score, names, most), share=share) for score in SCORES]


def losses(subject: Subject, names: Sequence[str] | None = None, most: int | None = MOST_POINTS) -> list[Data | None]:
    """The clients' mean loss in training."""
    lines = by_method(subject, "loss", names, most)
    return [panel("loss", "training loss", lines, read="The clients' mean loss on their own training data.")]


def by_method(
    subject: Subject, number: str, names: Sequence[str] | None = None, most: int | None = MOST_POINTS
) -> list[Data | None]:
    """A line per method of one number of the rounds."""
    labels = names or [group.label for group in subject.groups]
    return [
        series(label, group.runs, reader(number), most) for label, group in zip(labels, subject.groups, strict=True)
    ]


def extras(subject: Subject) -> list[Data | None]:
    """All other numbers that parts and measures have recorded."""
    names = dict.fromkeys(
        name
        for run in subject.runs
        for line in run.metrics[:1] + run.metrics[-1:]
        for name, value in line.items()
        if isinstance(value, int | float) and name not in KNOWN and not name.startswith(ELSEWHERE)
    )
    if subject.single:  # similarities of all layers belong in one panel
        layers = [name for name in names if name.startswith(LAYER)]
        for name in layers:
            names.pop(name)
        runs = subject.groups[0].runs
        shown = [series(name.removeprefix(LAYER), runs, reader(name)) for name in layers]
        layered = [panel("layers", "similarity (CKA) by layer", shown, read=READINGS["cka"])]
    else:
        layered = []
    others = [
        panel(
            name,
            name.replace("_", " ").replace("cka/", "similarity (CKA) of "),
            by_method(subject, name),
            read=READINGS.get("cka" if name.startswith(LAYER) else name, ""),
        )
        for name in names
    ]
    return others + layered


def reader(name: str) -> Callable[[Line], float | None]:
    """A function that reads a number of a round's line."""

    def read(line: Line) -> float | None:
        return line.get(name)

    return read


def alt_text(first: Data) -> str:
    """The last values in words."""
    ends = ", ".join(f"{line['label']} {figure(line['points'][-1][3], first['share'])}" for line in first["series"])
    return f"{first['label']} after the last evaluated round: {ends}."
