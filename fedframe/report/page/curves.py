"""Scores and loss over rounds, with intervals over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fedframe.analysis.explanations import READINGS
from fedframe.report.page.lines import MOST_POINTS, Line, panel, series
from fedframe.report.page.runs import Subject
from fedframe.report.page.scores import NAMES, SCORES
from fedframe.report.page.section import Data, Section
from fedframe.util.text import percent

READ = "Each line is a model's score after every evaluated round"
BANDS = (
    "; a band is the 95 % confidence interval of the mean over seeds: where bands lie apart, the difference is "
    "unlikely to be luck"
)
# Numbers of a round's line that have a place of their own on the page, or are no measure of learning.
KNOWN = {"round", "lr", "clients", "dropped", "seconds", "bytes_up", "bytes_down", "loss", "generic_loss", "per_class"}
KNOWN |= {f"{score}{kind}" for score in SCORES for kind in ("", "_weighted", "_count")}
LAYER = "cka/"  # prefix: linear CKA between clients, a number per layer
ELSEWHERE = ("nc",)  # prefixes: collapse has its own section


def section(subject: Subject) -> Section:
    """Curves of one method's scores, or of one score of several methods."""
    panels = [one for one in (*accuracy(subject), *losses(subject), *extras(subject)) if one is not None]
    if not panels:
        return Section("curves", "Learning curves", f"{READ}.", missing="No round is finished yet.")
    return Section("curves", "Learning curves", read_text(panels), {"panels": panels}, spoken(panels[0]))


def read_text(panels: list[Data]) -> str:
    """How to read the lines; bands only where there are any."""
    banded = any(point[4] is not None for one in panels for line in one["series"] for point in line["points"])
    return f"{READ}{BANDS if banded else ''}."


def accuracy(
    subject: Subject,
    names: Sequence[str] | None = None,
    labels: Mapping[str, str] = NAMES,
    most: int | None = MOST_POINTS,
) -> list[Data | None]:
    """One panel with all scores of a single method; otherwise one panel per score.

    `names` are those of the methods, `labels` those of the scores of a single one, `most` bounds the points of a line.
    """
    if subject.single:
        runs = subject.groups[0].runs
        lines = [series(labels[score], runs, reader(score), most) for score in SCORES]
        return [panel("accuracy", "accuracy", lines, share=True)]
    return [panel(score, NAMES[score], by_method(subject, score, names, most), share=True) for score in SCORES]


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
    """Whatever else parts and measures have written down."""
    names = dict.fromkeys(
        name
        for run in subject.runs
        for line in run.metrics[:1] + run.metrics[-1:]
        for name, value in line.items()
        if isinstance(value, int | float) and name not in KNOWN and not name.startswith(ELSEWHERE)
    )
    if subject.single:  # similarities of all layers belong into one picture
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


def spoken(first: Data) -> str:
    """The last values in words."""
    show = percent if first["share"] else str
    ends = ", ".join(f"{line['label']} {show(line['points'][-1][3])}" for line in first["series"])
    return f"{first['label']} after the last evaluated round: {ends}."
