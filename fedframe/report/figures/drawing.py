"""Which figure shows which data of a run, and how it is written to a file."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fedframe.errors import DataError, SettingError, nearest
from fedframe.report.figures import heatmaps, lines
from fedframe.report.figures.embedding import embedding
from fedframe.report.figures.partition import partition_figure
from fedframe.report.figures.smoothing import smooth
from fedframe.report.figures.style import paper_style, printable
from fedframe.report.page import about, clients, drift, features, geometry, predictions
from fedframe.report.page.build import check_folder, examined
from fedframe.report.page.runs import Subject, open_runs
from fedframe.report.page.section import Data, Section
from fedframe.util.files import write_bytes

NEEDS_MODELS = ("partition", "confusion", "gram", "embedding")
SMOOTHED = ("curves", "collapse")  # lines over rounds
FORMATS = (".svg", ".png", ".pdf")
DOTS = 300  # per inch


def draw(
    folders: Sequence[Path],
    what: str,
    out: Path | None = None,
    notify: Callable[[str], None] = print,
    changed_code: bool = False,
    smoothed: int = 1,
) -> Path:
    """Draw a figure of runs and write it; with `changed_code` models are looked at with edited files as they are.

    Lines over rounds can be smoothed: then a point is the mean of so many evaluations.
    """
    if what not in FIGURES:
        raise SettingError(f"what = {what!r}: {nearest(what, FIGURES)}")
    if smoothed != 1 and what not in SMOOTHED:
        raise SettingError(f"smooth = {smoothed}: {what} has no lines over rounds; use it with --what curves.")
    target = picture_path(check_folder(out) if out is not None else folders[0] / f"{what}.svg")
    subject = open_runs(folders)
    if what in NEEDS_MODELS:
        subject = examined(subject, notify=notify, changed_code=changed_code)
    figure = make_figure(subject, what, smoothed)
    write_figure(figure, target)
    return target


def picture_path(target: Path) -> Path:
    """A file to draw into, whose name ends in a format that there is."""
    if target.suffix.lower() not in FORMATS:
        raise SettingError(f"Pictures are SVG, PNG or PDF: name it {target.with_suffix('.svg')}.")
    return target


def make_figure(subject: Subject, what: str, smoothed: int = 1) -> Figure:
    """One of the FIGURES, drawn."""
    gather, drawn = FIGURES[what]
    data = gather(subject)
    with paper_style():
        return drawn(printable(smooth(data, smoothed) if what in SMOOTHED else data))


def write_figure(figure: Figure, target: Path) -> None:
    """Write a figure in the format of the file's name; without a date, so that the same figure has the same bytes."""
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {"Software": None}}
    suffix, file = target.suffix.lower(), io.BytesIO()
    metadata = {**dates[suffix], **({"Title": figure.get_suptitle()} if figure.get_suptitle() else {})}
    with paper_style():
        figure.savefig(file, format=suffix[1:], dpi=DOTS, bbox_inches="tight", metadata=metadata)
    write_bytes(target, file.getvalue())


def of_section(what: str, section: Callable[[Subject], Section]) -> Callable[[Subject], Data]:
    """A function that gives the data of a section of the page; a section without data is an error."""

    def gather(subject: Subject) -> Data:
        found = section(subject)
        if found.missing:
            raise DataError(f"There is nothing to draw for --what {what}. {found.missing}")
        return found.data

    return gather


def partition_data(subject: Subject) -> Data:
    """The partition of the first method, with the headline of the page."""
    first: Data = of_section("partition", clients.partition_section)(subject)["variants"][0]["data"]
    return {**first, "title": about.title(subject)}


def draw_partition(data: Data) -> Figure:
    """The partition of a run."""
    return partition_figure(np.array(data["counts"]), data["classes"], data["title"], data["clients"], data["note"])


# By the word that users type: what gathers the data, and what draws them.
FIGURES: dict[str, tuple[Callable[[Subject], Data], Callable[[Data], Figure]]] = {
    "curves": (lines.accuracy_data, lines.accuracy),
    "partition": (partition_data, draw_partition),
    "confusion": (of_section("confusion", predictions.confusion_section), heatmaps.confusion),
    "gram": (of_section("gram", geometry.gram_section), heatmaps.gram),
    "drift": (of_section("drift", drift.section), heatmaps.drift),
    "collapse": (of_section("collapse", geometry.collapse_section), lines.collapse),
    "clients": (of_section("clients", clients.spread_section), lines.clients),
    "embedding": (of_section("embedding", features.features_section), embedding),
}
