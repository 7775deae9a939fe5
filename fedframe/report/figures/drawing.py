"""Which figure, drawn by whom, into which file."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from fedframe.errors import DataError, SettingError, nearest
from fedframe.report.page.build import in_a_folder
from fedframe.report.page.runs import Subject, open_runs
from fedframe.util.files import write_bytes, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# By the word that users type: the page's section that gathers the data, and the file here that draws them.
FIGURES = {
    "curves": "curves",
    "partition": "partition",
    "confusion": "confusion",
    "gram": "gram",
    "drift": "drift",
    "collapse": "collapse",
    "clients": "spread",
    "embedding": "features",
}
NEEDS_MODELS = ("partition", "confusion", "gram", "embedding")
FORMATS = (".svg", ".png", ".pdf")
DOTS = 300  # per inch


def draw(folders: Sequence[Path], what: str, out: Path | None = None, say: Callable[[str], None] = print) -> Path:
    """Draw a figure of runs and write it."""
    if what not in FIGURES:
        raise SettingError(f"what = {what!r}: {nearest(what, FIGURES)}")
    target = in_a_folder(out) if out is not None else folders[0] / f"{what}.svg"
    if target.suffix.lower() not in FORMATS:
        raise SettingError(f"Pictures are SVG, PNG or PDF: name it {target.with_suffix('.svg')}.")
    subject = open_runs(folders)
    # Means over seeds with their intervals are matplotlib's; single runs need no library.
    plain = all(len(group.runs) == 1 for group in subject.groups) or not has_matplotlib()
    if what == "curves" and target.suffix.lower() == ".svg" and plain:
        from fedframe.report.curves import run_curves

        write_text(target, run_curves([run.path for run in subject.runs]))
        return target
    if what in NEEDS_MODELS:
        from fedframe.report.page.build import examined

        subject = examined(subject, say=say)
    if what == "partition" and target.suffix.lower() == ".svg":
        write_text(target, partition_svg(subject))
    else:
        write_bytes(target, file_bytes(make_figure(subject, what), target.suffix.lower()))
    return target


def has_matplotlib() -> bool:
    """Whether the extra is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def section_data(subject: Subject, what: str) -> dict[str, object]:
    """The data of the figure; why there are none is an error here."""
    section = import_module(f"fedframe.report.page.{FIGURES[what]}").section(subject)
    if section.missing:
        raise DataError(f"There is nothing to draw for --what {what}. {section.missing}")
    data: dict[str, object] = section.data
    return data


def make_figure(subject: Subject, what: str) -> Figure:
    """A figure drawn by matplotlib."""
    data = section_data(subject, what)
    if not has_matplotlib():
        raise SettingError(
            f"--what {what} as a picture of this kind needs matplotlib: pip install 'fedframe[plot]' (curves and "
            "partition as .svg need nothing)."
        )
    from fedframe.report.figures.style import paper_style

    with paper_style():
        figure: Figure = import_module(f"fedframe.report.figures.{what}").figure(data)
    return figure


def file_bytes(figure: Figure, suffix: str) -> bytes:
    """A figure in the format of a file; without a date, so that the same run gives the same file."""
    from fedframe.report.figures.style import paper_style

    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {"Software": None}}
    file = io.BytesIO()
    with paper_style():
        figure.savefig(file, format=suffix[1:], dpi=DOTS, bbox_inches="tight", metadata=dates[suffix])
    return file.getvalue()


def partition_svg(subject: Subject) -> str:
    """Who has what, by the picture that needs no library."""
    import numpy as np

    from fedframe.report.page.about import title
    from fedframe.report.svg import partition_picture

    data = section_data(subject, "partition")["variants"][0]["data"]  # type: ignore[index]
    return partition_picture(np.array(data["counts"]), data["classes"], title(subject), data["clients"])
