"""The page of a run or of a comparison: sections gathered from run folders, put into one HTML file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedframe.report.page import (
    about,
    calibration,
    classes,
    collapse,
    confusion,
    cost,
    curves,
    degeneration,
    drift,
    features,
    gram,
    heads,
    paired,
    partition,
    scores,
    similarity,
    spread,
)
from fedframe.report.page.runs import Subject
from fedframe.report.page.section import Section
from fedframe.report.page.size import fitted

# In the order of the questions that readers ask: how good, how did it learn, for whom, why, at what cost.
SECTIONS: tuple[Callable[[Subject], Section | None], ...] = (
    scores.section,
    about.section,
    paired.section,
    curves.section,
    partition.section,
    spread.section,
    classes.section,
    confusion.section,
    calibration.section,
    features.section,
    gram.section,
    heads.section,
    similarity.section,
    collapse.section,
    drift.section,
    degeneration.section,
    cost.section,
)


def page_data(subject: Subject, live: bool = False) -> dict[str, Any]:
    """All that the page's scripts draw, as plain values."""
    sections = [section for build in SECTIONS if (section := build(subject)) is not None]
    # What could not be measured stands after all that could.
    # Of several methods, settings are for those who look them up.
    sections.sort(key=lambda section: (bool(section.missing), section.id == "about" and not subject.single))
    return {
        "title": about.title(subject),
        "subtitle": about.subtitle(subject),
        "state": about.progress(subject),
        "live": live,
        "sections": fitted([section.plain() for section in filled(sections)]),
    }


def filled(sections: Sequence[Section]) -> list[Section]:
    """The same without gaps: a narrow section that has no neighbour becomes a wide one."""
    found: list[Section] = []
    alone = False
    for section in sections:
        narrow = not section.wide and not section.missing
        if alone and not narrow:
            found[-1] = replace(found[-1], wide=True)
        alone = narrow and not alone
        found.append(section)
    if alone:
        found[-1] = replace(found[-1], wide=True)
    return found


def make_page(subject: Subject, live: bool = False) -> str:
    """The page as HTML."""
    from fedframe.report.page.template import render

    data = page_data(subject, live)
    words = " ".join(str(section.get("alt", "")) for section in data["sections"])
    return render(data, words)


def default_target(folders: Sequence[Path]) -> Path:
    """Where a page goes if nobody says: into the folder that it is about, or here if there are several."""
    return folders[0] / "report.html" if len(folders) == 1 else Path("report.html")
