"""From run folders to a page: examines saved models where that is still to be done, and gathers the sections."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedframe.analysis import examine
from fedframe.core.measures import is_share, metric_name, sign_of
from fedframe.errors import DataError, FedframeError, SettingError, nearest
from fedframe.metrics.embedding import METHODS
from fedframe.report.page import (
    about,
    clients,
    cost,
    curves,
    drift,
    essentials,
    features,
    gain,
    geometry,
    measures,
    paired,
    predictions,
    scores,
)
from fedframe.report.page.runs import COMPARISON, Group, Run, Subject, open_runs
from fedframe.report.page.section import Section
from fedframe.report.page.similarity import heads_section, similarity_section
from fedframe.report.page.template import render
from fedframe.runs.folder import CONFIG, EXAMINATION, RunFolder
from fedframe.util.files import read_json, write_text

MOST = 4_500_000  # bytes of data; style and scripts are half a megabyte, and a page should stay below six

# In the order of the questions that readers ask: how good, who gains, how did it learn, for whom, why, at what cost;
# settings are last.
SECTIONS: tuple[Callable[[Subject], Section | None], ...] = (
    essentials.section,
    scores.section,
    gain.section,
    paired.section,
    curves.section,
    clients.spread_section,
    measures.section,
    predictions.classes_section,
    predictions.confusion_section,
    predictions.calibration_section,
    clients.partition_section,
    features.features_section,
    geometry.gram_section,
    heads_section,
    similarity_section,
    geometry.collapse_section,
    drift.section,
    features.degeneration_section,
    cost.section,
    about.section,
)


def write_page(
    folders: Sequence[Path],
    out: Path | None = None,
    *,
    quick: bool = False,
    embedding: str | None = None,
    changed_code: bool = False,
    notify: Callable[[str], None] = print,
) -> Path:
    """Write the page of runs; `quick` does not examine any models, `changed_code` also with edited files."""
    target = check_folder(out) if out is not None else default_target(folders)
    if embedding is not None and embedding not in METHODS:
        raise SettingError(f"embedding = {embedding!r}: {nearest(embedding, METHODS)}")
    subject = open_runs(folders)
    for run in subject.runs:
        for text in RunFolder(run.path).mend():
            notify(f"{run.path}: {text}")
    if len(folders) == 1 and (folders[0] / CONFIG).exists() and not RunFolder(folders[0]).metrics():
        raise DataError(
            f"{folders[0]} has no finished round yet, so there is nothing to report: go on with 'fedframe resume "
            f"{folders[0]}', or follow it with 'fedframe watch {folders[0]}'."
        )
    if not quick:
        subject = examined(subject, embedding, notify, changed_code)
    write_text(target, make_page(subject))
    return target


def default_target(folders: Sequence[Path]) -> Path:
    """The default file of a page: in the run's folder, or in the current one if there are several runs.

    A comparison has one page: this one takes the place of its page of tables.
    """
    if len(folders) > 1:
        return Path("report.html")
    return folders[0] / ("comparison.html" if (folders[0] / COMPARISON).exists() else "report.html")


def check_folder(target: Path) -> Path:
    """The file to write; its folder must exist, so that a typing error makes no folders."""
    if not target.parent.is_dir():
        raise SettingError(f"out = {target}: there is no folder {target.parent}; make it, or use --out {target.name}.")
    return target


def examined(
    subject: Subject,
    embedding: str | None = None,
    notify: Callable[[str], None] = print,
    changed_code: bool = False,
) -> Subject:
    """The same runs, with the saved models of one run of each method examined; an error is kept as a sentence."""
    firsts = [examine_run(group.first, embedding, notify, changed_code) for group in subject.groups]
    groups = [replace_first(group, first) for group, first in zip(subject.groups, firsts, strict=True)]
    return replace(subject, groups=tuple(groups))


def replace_first(group: Group, first: Run) -> Group:
    """The group with its first run read again."""
    return replace(group, runs=(first, *group.runs[1:]))


def examine_run(run: Run, embedding: str | None, notify: Callable[[str], None], changed_code: bool = False) -> Run:
    """Examine a finished run and read it again; one that is not finished is returned as it is."""
    if not run.summary or run.node:  # what a node has was written down when the run ended
        return run
    asked = previous_options(run.path)
    if embedding is not None:
        asked["embedding"] = embedding
    if not (run.path / EXAMINATION).exists():
        notify(f"Looking at the models of {run.path} (once; the result is kept in {EXAMINATION})")
    try:
        examine(run.path, **asked, changed_code=changed_code)
    except FedframeError as error:
        notify(f"{run.path}: {error}")
        return Run(run.path, examination_error=f"The saved models could not be examined. {error}")
    return Run(run.path)


def previous_options(folder: Path) -> dict[str, Any]:
    """The options of an existing examination, such as one by `fedframe measure`, which are kept."""
    try:
        made_of = read_json(folder / EXAMINATION).get("made_of") or {}
    except DataError:  # none, or a damaged one: made again
        return {}
    return {key: made_of[key] for key in ("samples", "seed", "embedding") if key in made_of}


def make_page(subject: Subject, live: bool = False) -> str:
    """The page as HTML."""
    data = page_data(subject, live)
    words = " ".join(str(section.get("alt", "")) for section in data["sections"])
    return render(data, words)


def page_data(subject: Subject, live: bool = False) -> dict[str, Any]:
    """The data that the page's scripts draw, as plain values."""
    sections = [section for build in SECTIONS if (section := build(subject)) is not None]
    # Sections without data come last; of a run that goes on, the curves come first.
    sections.sort(key=lambda section: (bool(section.missing), not (live and section.id == "curves")))
    return {
        "title": about.title(subject),
        "subtitle": about.subtitle(subject),
        "state": about.progress(subject),
        "progress": about.time_left(subject) if live else None,
        "metric": metric_name(scores.metric(subject)),
        "scoring": {
            "share": is_share(scores.metric(subject)),
            "sign": sign_of(scores.metric(subject)),
            "task": subject.groups[0].first.task,
        },
        "live": live,
        "sections": drop_runs_to_fit([section.plain() for section in without_gaps(sections)]),
    }


def without_gaps(sections: Sequence[Section]) -> list[Section]:
    """The same sections without gaps: a narrow section without a neighbour becomes a wide one."""
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


def drop_runs_to_fit(sections: list[dict[str, Any]], most: int = MOST) -> list[dict[str, Any]]:
    """The same sections, with runs left out of the largest ones until all fit; the first run always stays."""
    sizes = {section["id"]: byte_size(section) for section in sections}
    left_out: dict[str, list[str]] = {}
    while sum(sizes.values()) > most:
        several = [section for section in sections if len(section.get("data", {}).get("variants", [])) > 1]
        if not several:
            break
        largest = max(several, key=lambda section: sizes[section["id"]])
        variants = largest["data"]["variants"]
        left_out.setdefault(largest["id"], []).insert(0, variants[-1]["name"])
        largest["data"] = {**largest["data"], "variants": variants[:-1]}
        sizes[largest["id"]] = byte_size(largest)
    for section in sections:
        if section["id"] in left_out:
            names = "; ".join(left_out[section["id"]])
            section["read"] += f" (Left out to keep the page small: {names}. Their own pages show them.)"
    return sections


def byte_size(section: dict[str, Any]) -> int:
    """The size of a section in bytes."""
    return len(json.dumps(section, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))
