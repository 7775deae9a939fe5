"""Lines: accuracy over rounds, neural collapse over rounds, and accuracy from the worst served client to the best."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedframe.core.measures import metric_name
from fedframe.errors import DataError
from fedframe.report.figures.style import add_title, colour, dash, new_figure, shorten
from fedframe.report.page import curves as page
from fedframe.report.page.runs import Group, Subject
from fedframe.report.page.section import Data
from fedframe.settings import data_name, short_method
from fedframe.util.text import figure

LABELS = {"generic": "global test set", "client": "clients' own tests", "personal": "personal models"}
BAND = " A band is the 95 % confidence interval of the mean over seeds."
UNEVALUATED = "No round has been evaluated yet; run it with --eval-every 1."
DOTTED = 12  # points of a line that are few enough to be marked one by one
LABEL, LEADING = 7, 9.5  # points: type at the ends of lines, and the least distance between two of them
NEGLIGIBLE = 0.01  # below it a measure is as good as zero, and its line shall lie there, as on the page


def accuracy_data(subject: Subject) -> Data:
    """All scores of one method in one panel; of several methods a panel per score, with a line per method.

    Runs that have not been evaluated yet show their training loss.
    """
    names = line_names(subject.groups)
    found = [*page.accuracy(subject, names, LABELS, most=None), *page.losses(subject, names, most=None)]
    drawable = [panel for panel in found if panel is not None]
    panels = [panel for panel in drawable if panel["key"] != "loss"] or drawable
    if not panels:
        raise DataError("There is nothing to draw for --what curves. No round is finished yet.")
    configs = [run.config for run in subject.runs]
    held_out = {"validation data" if config.get("validate_share") else "global test set" for config in configs}
    for panel in panels:
        if panel["key"] == "accuracy" and held_out == {"validation data"}:
            for line in panel["series"]:
                line["label"] = "validation data" if line["label"] == LABELS["generic"] else line["label"]
        elif panel["key"] == "generic":
            panel["label"] = f"Shared model, {' or '.join(sorted(held_out))}"
    metric = metric_name(subject.groups[0].first.metric)
    caption = last_values(panels, names, held_out, metric)
    return {"panels": panels, "title": headline(subject, panels), "caption": caption, "metric": metric}


def line_names(groups: Sequence[Group]) -> list[str]:
    """What distinguishes the lines: methods, else names of folders, else paths; with several seeds, settings."""
    if any(len(group.runs) > 1 for group in groups):
        return [group.label for group in groups]
    paths = [group.first.path for group in groups]
    methods, folders = [short_method(str(g.first.config["method"])) for g in groups], [path.name for path in paths]
    return next((names for names in (methods, folders) if len(set(names)) == len(names)), [str(path) for path in paths])


def headline(subject: Subject, panels: Sequence[Data]) -> str:
    """Which models, on which data and split."""
    problems = {(str(run.config["data"]), str(run.config.get("partition"))) for run in subject.runs}
    data, partition = min(problems)
    where = f"{data_name(data)}, {partition}" if len(problems) == 1 else "different data"
    if subject.single:
        return f"{short_method(str(subject.groups[0].first.config['method']))} on {where}"
    keys = {panel["key"] for panel in panels}
    shown = " and ".join(
        kind for kind, has in (("shared", keys - {"personal"}), ("personal", "personal" in keys)) if has
    )
    return f"{shown.capitalize()} models on {where}"


def last_values(panels: Sequence[Data], names: Sequence[str], held_out: set[str], metric: str) -> str:
    """The scores after the last round in words, what they are, and which methods do not have them."""
    first = panels[0]
    if first["key"] == "loss":
        return UNEVALUATED
    ends = ", ".join(f"{line['label']}: {figure(line['points'][-1][3], first['share'])}" for line in first["series"])
    text = f"After the last round: {ends}"
    if first["key"] == "generic":
        text += f" (generic {metric}: shared model, {' or '.join(sorted(held_out))})"
        absent = [name for name in names if name not in {line["label"] for line in first["series"]}]
        text += f"; without a generic score: {', '.join(absent)}" if absent else ""
    elif first["key"] != "accuracy":
        text += f" ({first['key']} {metric})"
    banded = any(point[4] is not None for panel in panels for line in panel["series"] for point in line["points"])
    return f"{text}.{BAND}" if banded else text


def accuracy(data: Data) -> Figure:
    """Lines over rounds with their intervals, each with its name and last value at its end."""
    panels = data["panels"]
    most = max(len(panel["series"]) for panel in panels)
    width = 4.8 if len(panels) == 1 else 3.7 * len(panels)
    figure, places = new_figure(width=width, height=max(2.7, 1.5 + most * LEADING / 72), columns=len(panels))
    for axes, panel in zip(places, panels, strict=True):
        draw_lines(axes, panel["series"], 100 if panel["share"] else 1)
        named = panel["label"] if panel["key"] == "loss" else data.get("metric", "accuracy")
        axes.set_ylabel(f"{named} (%)" if panel["share"] else named)
        if len(panels) > 1:
            axes.set_title(panel["label"], loc="left")
    add_title(figure, data["title"], data["caption"])
    figure.draw_without_rendering()  # labels are moved apart in a panel whose height is known
    for axes, panel in zip(places, panels, strict=True):
        label_ends(axes, panel["series"], 100 if panel["share"] else 1)
    return figure


def collapse(data: Data) -> Figure:
    """Neural collapse over rounds, a small panel per measure."""
    panels = data["panels"]
    if not panels:
        raise DataError(f"There is nothing to draw for --what collapse. {data['note']}")
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, places = new_figure(width=2.3 * columns, height=1.8 * rows, columns=columns, rows=rows)
    for axes, panel in zip(places, panels, strict=False):
        draw_lines(axes, panel["series"])
        axes.set_title(panel["label"])
        axes.set_ylim(*reach(panel))
    for axes in places[len(panels) :]:
        axes.remove()
    if len(panels[0]["series"]) > 1:
        places[0].legend()
    return figure


def reach(panel: Data) -> tuple[float, float]:
    """The ends of the axis: from 0 to the largest value, or as far as a measure has to go to be worth a look."""
    known = [value for line in panel["series"] for point in line["points"] for value in point[3:] if value is not None]
    low, high = min([0.0, *known]), max([NEGLIGIBLE, *known])
    margin = 0.05 * (high - low)
    return low - margin, high + margin


def clients(data: Data) -> Figure:
    """The spread over clients: accuracies from the worst served client to the best, a panel per kind of model."""
    panels = data["panels"]
    figure, places = new_figure(width=3.4 * len(panels), height=2.4, columns=len(panels))
    for axes, panel in zip(places, panels, strict=True):
        for i, line in enumerate(panel["series"]):
            share = line.get("share", True)
            values = [100 * value if share else value for value in line["values"]]
            shares = [100 * rank / max(1, len(values) - 1) for rank in range(len(values))]
            marker = "." if len(values) <= 60 else None
            axes.plot(shares, values, color=colour(i), linestyle=dash(i), marker=marker, label=line["label"])
        axes.axvspan(0, 10, color="#c2410c", alpha=0.08, linewidth=0)
        axes.grid(axis="y")
        axes.set_xlabel("clients, worst to best (%)")
        percents = " (%)" if all(line.get("share", True) for line in panel["series"]) else ""
        axes.set_ylabel(f"{data.get('metric', 'accuracy')} on own test data{percents}")
        axes.legend(loc="lower right")
        if len(panels) > 1:
            axes.set_title(panel["label"])
    return figure


def draw_lines(axes: Axes, series: Sequence[Data], factor: float = 1.0) -> None:
    """Lines over rounds with their intervals; a value that is missing leaves a gap."""
    for i, line in enumerate(series):
        points = line["points"]
        values = [math.nan if point[3] is None else factor * point[3] for point in points]
        axes.plot(
            [point[0] for point in points],
            values,
            color=colour(i),
            linestyle=dash(i),
            marker="." if len(points) <= DOTTED else None,
            markersize=4,
            label=line["label"],
        )
        banded = [point for point in points if point[4] is not None]
        if banded:
            low, high = ([factor * point[k] for point in banded] for k in (4, 5))
            axes.fill_between([point[0] for point in banded], low, high, color=colour(i), alpha=0.18, linewidth=0)
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 2.5, 5, 10]))


def label_ends(axes: Axes, series: Sequence[Data], factor: float = 1.0) -> None:
    """Each line's name and last value beside the panel, moved apart where they would cover each other."""
    low, high = axes.get_ylim()
    places = max(0, min(6, math.ceil(-math.log10((high - low) / 300))))  # decimals, finer than the eye sees
    ends = [next(point for point in reversed(line["points"]) if point[3] is not None) for line in series]
    height = axes.get_window_extent().height / axes.figure.dpi * 72
    wanted = [(factor * end[3] - low) / (high - low) * height for end in ends]
    heights = spread(wanted, LABEL / 2, height - LABEL / 2, LEADING)
    right = max(end[0] for end in ends)
    for i, (line, end, place) in enumerate(zip(series, ends, heights, strict=True)):
        moved = abs(place - wanted[i]) > 1.5 or end[0] < right
        leader = {"arrowstyle": "-", "linestyle": ":", "color": colour(i), "linewidth": 0.6, "relpos": (0, 0.5)}
        axes.annotate(
            f"{shorten(line['label'], 28)} {factor * end[3]:,.{places}f}",
            xy=(end[0], factor * end[3]),
            xytext=(1.02, place / height),
            textcoords="axes fraction",
            va="center",
            fontsize=LABEL,
            color=colour(i),
            annotation_clip=False,
            arrowprops={**leader, "shrinkA": 0, "shrinkB": 2} if moved else None,
        )
        axes.plot(end[0], factor * end[3], ".", color=colour(i), markersize=6)


def spread(wanted: Sequence[float], low: float, high: float, gap: float) -> list[float]:
    """Places at least `gap` apart, each moved as little as possible; those that collide are centred on their mean."""

    def first(block: list[float]) -> float:
        length = gap * (len(block) - 1)
        return max(low, min(sum(block) / len(block) - length / 2, high - length))

    order = sorted(range(len(wanted)), key=lambda i: (wanted[i], -i))  # of equal ones, the first on top
    blocks: list[list[float]] = []
    for i in order:
        blocks.append([wanted[i]])
        while len(blocks) > 1 and first(blocks[-1]) < first(blocks[-2]) + gap * len(blocks[-2]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    found = [first(block) + gap * i for block in blocks for i in range(len(block))]
    return [place for _, place in sorted(zip(order, found, strict=True))]
